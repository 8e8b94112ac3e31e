"""``computekit prune``: remove the least important channels and neurons, then fine-tune what is left.

Other plugins add importance criteria with the hook ``computekit_prune_criteria``; see `criteria`.
"""

from __future__ import annotations

import pluggy

import computekit
from computekit import hookspecs, implements

from . import criteria
from .criteria import Criterion

__all__ = ["Criterion"]


@implements(hookspecs.computekit_addhooks)
def computekit_addhooks(manager: pluggy.PluginManager) -> None:
    manager.add_hookspecs(criteria)


@implements(hookspecs.computekit_steps)
def computekit_steps() -> list[computekit.Step]:
    summary = "Remove the least important channels and neurons for good, then fine-tune what is left."
    prune = computekit.LazyCommand("prune", f"{__name__}.command:prune", summary)
    return [computekit.Step("prune", prune, takes="model", gives="model")]


@implements(criteria.computekit_prune_criteria)
def computekit_prune_criteria() -> list[Criterion]:
    return list(criteria.BUILTIN)


@implements(hookspecs.computekit_columns)
def computekit_columns() -> list[computekit.Column]:
    titles = {"of_input": "before pruning", "before_fine_tuning": "before fine-tuning"}
    return [
        computekit.Column("parameters_left", "parameters left", "%", 0.01, 3, "lower", detail=True, order=12),
        computekit.Column("forward_flops_left", "FLOPs left", "%", 0.01, 3, "lower", detail=True, order=21),
        *(
            computekit.Column(f"accuracy_{key}", f"accuracy {title}", "%", 0.01, 4, "higher", detail=True, order=47)
            for key, title in titles.items()
        ),
        *(
            computekit.Column(f"perplexity_{key}", f"perplexity {title}", "", 1.0, 4, "lower", detail=True, order=48)
            for key, title in titles.items()
        ),
    ]
