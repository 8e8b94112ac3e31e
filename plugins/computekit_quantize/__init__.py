"""The quantize plugin: ``computekit quantize`` stores the weights of a model file in fewer bits."""

from __future__ import annotations

import computekit

from .command import quantize


@computekit.hookimpl
def computekit_steps() -> list[computekit.Step]:
    return [computekit.Step("quantize", quantize, takes="model", gives="model")]


@computekit.hookimpl
def computekit_columns() -> list[computekit.Column]:
    return [
        computekit.Column("compression_ratio", "compression", "x", digits=3, better="higher", order=12),
        computekit.Column("coverage", "quantized", "%", 0.01, digits=3, order=13),
    ]
