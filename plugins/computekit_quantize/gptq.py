"""GPTQ: each column's rounding error is made up for by the columns that are still to be rounded.

Frantar, Ashkboos, Hoefler, Alistarh 2022, "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained
Transformers", arXiv:2210.17323: algorithm 1 with the Cholesky form of the inverse Hessian and lazy batches (section
3.3). Columns are rounded in the order of falling second moment ("act-order" in the authors' code); each group's scale
is fixed before, by the squared errors that the columns would cost, so that groups stay consecutive in the file. Then
the scales are solved for, given the integers, and the columns rounded again.

The Hessian is damped by 10% of its mean diagonal, where the paper takes 1%: with the few thousand tokens of a quick
calibration that gives less error on other text. Eight layers of SmolLM2-135M, 4,096 tokens, share of the squared output
on other text of the same kind: 0.55% with `mse` alone, 0.26% without the order, 0.23% damped by 1%, 0.21% by 10%, 0.20%
with weighed scales, 0.18% with scales that are solved for.
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
_SOLVED = 2  # times that the scales are solved for, and the columns rounded again
_VALUES = 1 << 24  # of the systems of equations that are solved at a time


def quantize(
    weight: Tensor, moments: Moments, bits: int, group: int | None, name: str, *, zero_points: bool = False
) -> compressed.QuantizedWeight:
    """Round ``weight`` (out, ...) so that the layer's outputs on the observed inputs change little.

    The grid is that of `mse`, or with ``zero_points`` that of `computekit.models.compressed.quantize`, until its scales
    are solved for.

    Raises:
        NonFinite: the weight holds NaN or infinity.
    """
    hessian = damped(moments.second_moment)
    order = hessian.diagonal().argsort(descending=True, stable=True)
    factor = inverse_factor(hessian[order][:, order])
    if zero_points:
        start = compressed.quantize(weight, bits, group, name, zero_points=True)
    else:
        costs = torch.empty(len(order))
        costs[order] = factor.diagonal() ** -2.0  # what a squared error costs that later columns have made up for
        start = mse.quantize(weight, bits, group, name, costs)
    rows = weight.flatten(1).float()
    group_of = torch.arange(rows.shape[1]) // compressed.group_size(rows.shape[1], group)
    scale, zero = start.scale, start.zero_point
    zeros = torch.zeros(rows.shape) if zero is None else zero.float()[:, group_of]
    for left in range(_SOLVED, -1, -1):
        columns, scales, zero_steps = (
            tensor[:, order].T.contiguous() for tensor in (rows, scale.float()[:, group_of], zeros)
        )
        values = torch.empty(rows.shape)
        values[:, order] = _round(columns, scales, zero_steps, factor, 1 << (bits - 1)).T
        if left:
            scale = _solve(rows, values - zeros, hessian, scale)
    return compressed.QuantizedWeight(values.to(torch.int8).reshape(weight.shape), scale, bits, zero)


def damped(second_moment: Tensor) -> Tensor:
    """The Hessian of the squared error of a layer's outputs, damped: (columns, columns)."""
    hessian = second_moment.clone()
    diagonal = hessian.diagonal()
    diagonal.masked_fill_(diagonal == 0, 1.0)  # of a column that was always zero nothing is known
    diagonal += _DAMPING * diagonal.mean()
    return hessian


def inverse_factor(hessian: Tensor) -> Tensor:
    """The upper Cholesky factor of the inverse of a damped Hessian: (columns, columns)."""
    factor: Tensor = torch.linalg.cholesky(torch.cholesky_inverse(torch.linalg.cholesky(hessian)), upper=True)
    return factor


def _solve(rows: Tensor, steps: Tensor, hessian: Tensor, scale: Tensor) -> Tensor:
    """The scales (out, groups), in the type of ``scale``, with which ``steps`` (out, columns) come nearest to ``rows``.

    Least squares under the Hessian: for the values q of a row in groups g and h, sum_h (q_g^T H_gh q_h) s_h = q_g^T (H
    w)_g. A scale that would double, halve or turn stays as it was: there is little to tell it from.
    """
    out, groups = scale.shape
    size = -(-rows.shape[1] // groups)
    missing = groups * size - rows.shape[1]
    solved = torch.empty(out, groups)

    def by_group(products: Tensor) -> Tensor:
        return torch.nn.functional.pad(products, (0, missing)).reshape(-1, groups, size).sum(2)

    piece = max(1, _VALUES // max(groups * groups, rows.shape[1]))
    for q, w, part in zip(*(torch.split(tensor, piece) for tensor in (steps, rows, solved)), strict=True):
        left = torch.stack([by_group((q[:, g] @ hessian[g]) * q) for g in _slices(groups, size)], 1)
        diagonal = left.diagonal(dim1=1, dim2=2)
        diagonal += 1e-6 * diagonal.mean(1, keepdim=True) + 1e-30
        part.copy_(torch.linalg.solve(left, by_group((w @ hessian) * q)))
    near = solved / scale.float()
    return solved.where((near > 0.5) & (near < 2), scale.float()).to(scale.dtype)


def _slices(groups: int, size: int) -> list[slice]:
    return [slice(start, start + size) for start in range(0, groups * size, size)]


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
