"""The estimator plugin: what a model costs to train and to serve, before anything runs."""

from __future__ import annotations

import computekit


@computekit.hookimpl
def computekit_commands() -> list[computekit.Command]:
    from .cli import estimator

    return [computekit.Command(estimator)]


@computekit.hookimpl
def computekit_steps() -> list[computekit.Step]:
    from .count import count

    return [computekit.Step("estimator", count, takes="model", gives="record", words=("estimator", "count"))]


@computekit.hookimpl
def computekit_columns() -> list[computekit.Column]:
    return [computekit.Column("forward_flops", "forward FLOPs", "MFLOP", 1e6, order=12, better="lower")]
