"""Training: `fit` runs a `Recipe` on a module; ``train``, ``distill`` and fine-tuning after ``prune`` share it.

::

    from computekit import training

    @click.command()
    @training.recipe_options()
    @options.step
    def mine(run, recipe):                      # a training.Recipe
        result = training.fit(module, data, recipe, device=run.device, seed=run.seed, progress=run.progress)
        test = evaluation.evaluate(module, data.test, data.task, run.device)
        training.report(run, module, data, result, test)

Importing this package does not import torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .recipe import PRECISIONS, Recipe, recipe_options
from .report import report

if TYPE_CHECKING:
    from .loop import FitResult, Loss, fit

__all__ = ["PRECISIONS", "FitResult", "Loss", "Recipe", "fit", "recipe_options", "report"]


def __getattr__(name: str) -> Any:
    if name in ("FitResult", "Loss", "fit"):
        from . import loop

        return getattr(loop, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
