"""Ternary weights: each is -1, 0 or 1 times a scale per output channel (Li, Zhang and Liu 2016, arXiv:1605.04711).

``computekit ternary model.pt`` is a step; ``computekit quantize --scheme ternary model.pt`` the same as a scheme.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import computekit
from computekit import hookspecs, implements, options
from computekit_quantize import Scheme
from computekit_quantize.schemes import computekit_quantization_schemes

if TYPE_CHECKING:
    import torch

    from computekit.models.compressed import QuantizedWeight

COMPUTEKIT_API = 1


def ternarize(weight: torch.Tensor, bits: int = 4, group: int | None = None, name: str = "weight") -> QuantizedWeight:
    """``weight`` (out, ...) as -1, 0 and 1: those above 0.7 times a row's mean magnitude keep their sign.

    The arguments are those of a scheme; a row has one scale whatever ``group``.
    """
    import torch

    from computekit.models import compressed

    rows = weight.reshape(len(weight), -1).float()
    if not bool(torch.isfinite(rows).all()):
        raise compressed.NonFinite(name)
    kept = rows.abs() > 0.7 * rows.abs().mean(1, keepdim=True)
    scale = (rows.abs() * kept).sum(1, keepdim=True) / kept.sum(1, keepdim=True).clamp(min=1)
    values = (rows.sign() * kept).to(torch.int8).reshape(weight.shape)
    return compressed.QuantizedWeight(values, scale.to(weight.dtype), bits)


@click.command()
@options.model
@options.trust_pickle
@options.step
def ternary(run: computekit.StepRun, model: Path, trust_pickle: bool) -> None:
    """Round every weight matrix of MODEL to -1, 0 or 1 times a scale per output channel.

    \b
    Example:
      computekit ternary model.pt -o small.pt
    """
    from computekit.models import open_model, rewrite

    source = open_model(run.input(model), trust_pickle=trust_pickle)
    zeros, total = 0, 0

    def transform(info: Any, load: Any) -> list[tuple[str, torch.Tensor]] | None:
        nonlocal zeros, total
        if not info.dtype.is_floating_point or len(info.shape) < 2:
            return None  # copied unchanged
        weight = ternarize(load(), name=info.name)
        zeros, total = zeros + int((weight.values == 0).sum()), total + info.numel
        return weight.store(info.name)

    with run.writing(model.with_stem(f"{model.stem}-ternary")) as target:
        rewrite(source, target, transform)
        run.put("file_bytes", target.stat().st_size, "B")
    if total:
        run.put("zeros", zeros / total, "1", method="share of the ternary weights that are zero")
    else:
        run.unknown("zeros", "the model has no weight matrix", "1")


@implements(hookspecs.computekit_steps)
def steps() -> list[computekit.Step]:
    return [computekit.Step("ternary", ternary, takes="model", gives="model")]


@implements(hookspecs.computekit_columns)
def columns() -> list[computekit.Column]:
    return [computekit.Column("zeros", "zeros", "%", 0.01, digits=3, better="higher")]


@implements(computekit_quantization_schemes)
def schemes() -> list[Scheme]:
    return [Scheme("ternary", "-1, 0 and 1, one scale per output channel", 4, ternarize)]
