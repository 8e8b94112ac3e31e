"""Training: `fit` runs a `Recipe` on a module; ``train``, ``distill`` and fine-tuning after ``prune`` share it.

::

    from computekit import training

    @click.command()
    @training.recipe_options()
    @options.step
    def mine(run, recipe):                      # a training.Recipe
        result = training.fit(module, data, recipe, device=run.device, seed=run.seed, progress=run.progress)
        test = training.tested(module, data, result, run.device)
        training.report(run, module, data, result, test)

Importing this package does not import torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .execution import Execution, execution_options
from .recipe import PRECISIONS, Recipe, recipe_options
from .report import report, tested, utilization

if TYPE_CHECKING:
    from .loop import FitResult, fit
    from .parallel import Ranks, joined
    from .step import Loss, cross_entropy
    from .trace import TRACED_STEPS

_LAZY = {
    "FitResult": "loop",
    "fit": "loop",
    "Ranks": "parallel",
    "joined": "parallel",
    "Loss": "step",
    "cross_entropy": "step",
    "TRACED_STEPS": "trace",
}

__all__ = [
    "PRECISIONS",
    "TRACED_STEPS",
    "Execution",
    "FitResult",
    "Loss",
    "Ranks",
    "Recipe",
    "cross_entropy",
    "execution_options",
    "fit",
    "joined",
    "recipe_options",
    "report",
    "tested",
    "utilization",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(f".{_LAZY[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
