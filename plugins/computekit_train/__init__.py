"""The train plugin: ``computekit train`` trains a model from scratch."""

from __future__ import annotations

import computekit
from computekit import hookspecs, implements


@implements(hookspecs.computekit_steps)
def computekit_steps() -> list[computekit.Step]:
    summary = "Train a model on a data set and keep the weights of the best epoch."
    train = computekit.LazyCommand("train", f"{__name__}.command:train", summary)
    return [computekit.Step("train", train, takes="nothing", gives="model")]


@implements(hookspecs.computekit_columns)
def computekit_columns() -> list[computekit.Column]:
    return [
        computekit.Column("accuracy", "accuracy", "%", 0.01, 4, "higher", pareto=True, order=40),
        computekit.Column("accuracy_difference", "difference", "points", 0.01, 2, "higher", order=41),
        computekit.Column("perplexity", "perplexity", "", 1.0, 4, "lower", pareto=True, order=42),
        computekit.Column("perplexity_ratio", "perplexity ratio", "", 1.0, 4, "lower", order=43),
    ]
