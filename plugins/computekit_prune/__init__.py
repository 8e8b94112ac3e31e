"""``computekit prune``: remove the least important channels and neurons, then fine-tune what is left.

Other plugins add importance criteria with the hook ``computekit_prune_criteria``; see `criteria`.
"""

from __future__ import annotations

import pluggy

import computekit

from . import criteria
from .criteria import Criterion

__all__ = ["Criterion"]


@computekit.hookimpl
def computekit_addhooks(manager: pluggy.PluginManager) -> None:
    manager.add_hookspecs(criteria)


@computekit.hookimpl
def computekit_steps() -> list[computekit.Step]:
    from .command import prune

    return [computekit.Step("prune", prune, takes="model", gives="model")]


@computekit.hookimpl
def computekit_prune_criteria() -> list[Criterion]:
    return list(criteria.BUILTIN)
