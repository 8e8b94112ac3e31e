"""GPTQ: each column's rounding error is made up for by the columns that are still to be rounded.

Frantar, Ashkboos, Hoefler, Alistarh 2022, "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained
Transformers", arXiv:2210.17323: algorithm 1 with the Cholesky form of the inverse Hessian and lazy batches (section
3.3). Columns are rounded in the order of falling second moment ("act-order" in the authors' code); each group's scale
is fixed before, by its own squared error, so that groups stay consecutive in the file.

The Hessian is damped by 10% of its mean diagonal, where the paper takes 1%: with the few thousand tokens of a quick
calibration that gives less error on other text (eight layers of SmolLM2-135M, 4,096 tokens: 0.21% of the squared output
instead of 0.23%; 0.26% without the order, 0.55% with `mse` alone).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from computekit.models import compressed

from . import mse

if TYPE_CHECKING:
    from torch import Tensor

    from .moments import Moments

_DAMPING = 0.1
_BATCH = 64  # columns whose errors are passed on to the rest at once


def quantize(
    weight: Tensor, moments: Moments, bits: int, group: int | None, name: str, *, zero_points: bool = False
) -> compressed.QuantizedWeight:
    """Round ``weight`` (out, ...) so that the layer's outputs on the observed inputs change little.

    The grid is that of `mse`, or with ``zero_points`` that of `computekit.models.compressed.quantize`.

    Raises:
        NonFinite: the weight holds NaN or infinity.
    """
    if zero_points:
        start = compressed.quantize(weight, bits, group, name, zero_points=True)
    else:
        start = mse.quantize(weight, bits, group, name)
    rows = weight.flatten(1).float()
    size = compressed.group_size(rows.shape[1], group)
    half = 1 << (bits - 1)

    order = moments.second_moment.diagonal().argsort(descending=True, stable=True)
    factor = inverse_factor(moments.second_moment[order][:, order])
    group_of = order // size

    def of_columns(tensor: Tensor) -> Tensor:
        return tensor.float().T[group_of].contiguous()

    scale = of_columns(start.scale)
    zero = torch.zeros_like(scale) if start.zero_point is None else of_columns(start.zero_point)
    values = _round(rows.T[order].contiguous(), scale, zero, factor, half)
    restored = torch.empty(rows.shape, dtype=torch.int8)
    restored[:, order] = values.to(torch.int8).T
    return compressed.QuantizedWeight(restored.reshape(weight.shape), start.scale, bits, start.zero_point)


def inverse_factor(second_moment: Tensor) -> Tensor:
    """The upper Cholesky factor of the inverse of the damped Hessian: (columns, columns)."""
    hessian = second_moment.clone()
    diagonal = hessian.diagonal()
    diagonal.masked_fill_(diagonal == 0, 1.0)  # of a column that was always zero nothing is known
    diagonal += _DAMPING * diagonal.mean()
    factor: Tensor = torch.linalg.cholesky(torch.cholesky_inverse(torch.linalg.cholesky(hessian)), upper=True)
    return factor


def _round(columns: Tensor, scale: Tensor, zero: Tensor, factor: Tensor, half: int) -> Tensor:
    """Integers (columns, out) for ``columns``, which change, with ``scale`` and ``zero`` of the same shape.

    Each column lies in one piece, which takes a third of the time that it takes where rows do.
    """
    values = torch.empty_like(columns)
    for start in range(0, len(columns), _BATCH):
        end = min(start + _BATCH, len(columns))
        errors = torch.empty_like(columns[start:end])
        for column in range(start, end):
            weight = columns[column]
            steps = (weight / scale[column] + zero[column]).round_().clamp_(-half, half - 1)
            values[column] = steps
            error = (weight - (steps - zero[column]) * scale[column]) / factor[column, column]
            columns[column + 1 : end].addr_(factor[column, column + 1 : end], error, alpha=-1)
            errors[column - start] = error
        columns[end:].addmm_(factor[start:end, end:].T, errors, alpha=-1)
    return values
