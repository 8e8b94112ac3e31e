"""The estimator plugin: what a model costs to train and to serve, before anything runs."""

from __future__ import annotations

import computekit
from computekit import hookspecs, implements


@implements(hookspecs.computekit_commands)
def computekit_commands() -> list[computekit.Command]:
    summary = "Estimate what a model costs to train and to serve, before anything runs."
    estimator = computekit.LazyCommand("estimator", f"{__name__}.cli:estimator", summary)
    return [computekit.Command(estimator)]


@implements(hookspecs.computekit_steps)
def computekit_steps() -> list[computekit.Step]:
    count = computekit.LazyCommand("count", f"{__name__}.count:count", "Count parameters, FLOPs and bytes of a model.")
    return [computekit.Step("estimator", count, takes="model", gives="record", words=("estimator", "count"))]


@implements(hookspecs.computekit_columns)
def computekit_columns() -> list[computekit.Column]:
    return [computekit.Column("forward_flops", "forward FLOPs", "MFLOP", 1e6, order=12, better="lower")]
