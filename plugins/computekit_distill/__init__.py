"""The distill plugin: ``computekit distill`` trains a small student to imitate a teacher."""

from __future__ import annotations

from typing import TYPE_CHECKING

import computekit
from computekit import hookspecs, implements

from . import losses
from .losses import DistillationLoss

if TYPE_CHECKING:
    import pluggy

__all__ = ["DistillationLoss"]


@implements(hookspecs.computekit_addhooks)
def computekit_addhooks(manager: pluggy.PluginManager) -> None:
    manager.add_hookspecs(losses)


@implements(losses.computekit_distillation_losses)
def computekit_distillation_losses() -> list[DistillationLoss]:
    return list(losses.BUILTIN)


@implements(hookspecs.computekit_steps)
def computekit_steps() -> list[computekit.Step]:
    summary = "Train a small student to imitate a teacher."
    distill = computekit.LazyCommand("distill", f"{__name__}.command:distill", summary)
    return [computekit.Step("distill", distill, takes="model", gives="model")]


@implements(hookspecs.computekit_columns)
def computekit_columns() -> list[computekit.Column]:
    return [
        computekit.Column("teacher_accuracy", "accuracy of teacher", "%", 0.01, 4, "higher", detail=True, order=45),
        computekit.Column("control_accuracy", "accuracy of control", "%", 0.01, 4, "higher", detail=True, order=45),
        computekit.Column("teacher_perplexity", "perplexity of teacher", "", 1.0, 4, "lower", detail=True, order=46),
        computekit.Column("control_perplexity", "perplexity of control", "", 1.0, 4, "lower", detail=True, order=46),
        computekit.Column("accuracy_difference_to_control", "gain over control", "points", 0.01, 2, "higher", order=45),
        computekit.Column("perplexity_ratio_to_control", "perplexity / control", "", 1.0, 3, "lower", order=46),
    ]
