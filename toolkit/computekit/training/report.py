"""What every training step puts into its record."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

    from ..datasets import Data
    from ..evaluation import Evaluation
    from ..steps import StepRun
    from .loop import FitResult


def report(run: StepRun, module: nn.Module, data: Data, result: FitResult, test: Evaluation) -> None:
    """Record a finished training: the metric on ``test``, the compute spent, the speed, the recipe and the curve."""
    run.spent_training(result.train_flops)
    run.put("parameters", sum(parameter.numel() for parameter in module.parameters()))
    run.put(test.metric, **test.quantity())
    run.put(f"validation_{test.metric}", **result.validation.quantity())
    run.put("best_epoch", result.best_epoch)
    run.put("train_samples_per_s", result.samples_per_s, "1/s", how="measured")
    run.details["recipe"] = dataclasses.asdict(result.recipe)
    run.details["history"] = result.history
    run.details["data"] = data.describe()
