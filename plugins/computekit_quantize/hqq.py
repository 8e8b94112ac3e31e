"""HQQ: scales and zero points that leave small errors small, and let a few large ones be large. Needs no data.

Badri and Shaji 2023, "Half-Quadratic Quantization of Large Machine Learning Models"
(mobiusml.github.io/hqq_blog): the error in the l_p norm, p = 0.7, is split into a sparse part, found by shrinkage, and
a rest that has a closed solution, in turns. There the zero point is a float and alone is solved for; the format of
the file has integers, so here the scale is solved for too, by least squares.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from computekit.models import compressed

if TYPE_CHECKING:
    from torch import Tensor

_P = 0.7
_ROUNDS = 20
_STIFFNESS, _STIFFER = 10.0, 1.01  # "beta" and "kappa": the penalty of the split, and its growth per round


def quantize(weight: Tensor, bits: int, group: int | None, name: str) -> compressed.QuantizedWeight:
    """Round ``weight`` (out, ...) with a scale and a zero point per group; the best of all rounds is taken.

    Raises:
        NonFinite: the weight holds NaN or infinity.
    """
    plain = compressed.quantize(weight, bits, group, name, zero_points=True)
    assert plain.zero_point is not None
    rows = weight.flatten(1).float()
    size = compressed.group_size(rows.shape[1], group)
    groups = torch.nn.functional.pad(rows, (0, -rows.shape[1] % size)).reshape(rows.shape[0], -1, size)
    unit = groups.abs().amax(2, keepdim=True).clamp_min(1e-30)  # the penalty is meant for values of about 1
    groups = groups / unit
    half = 1 << (bits - 1)
    scale, zero = plain.scale.float() / unit.squeeze(2), plain.zero_point.float()
    best_scale, best_zero = scale, zero
    least = torch.full(scale.shape, torch.inf)
    stiffness = _STIFFNESS
    for _ in range(_ROUNDS):
        values = _round(groups, scale, zero, half)
        error = groups - (values - zero.unsqueeze(2)) * scale.unsqueeze(2)
        norm = error.abs().pow(_P).sum(2)
        better = norm < least
        best_scale, best_zero = scale.where(better, best_scale), zero.where(better, best_zero)
        least = norm.minimum(least)
        target = groups - _shrink(error, stiffness)
        zero = (values - target / scale.unsqueeze(2)).mean(2).round_().clamp_(-half, half - 1)
        steps = values - zero.unsqueeze(2)
        solved = (steps * target).sum(2) / steps.square().sum(2).clamp_min(1e-9)
        scale = solved.where(solved > 0, scale)
        stiffness *= _STIFFER
    stored = (best_scale * unit.squeeze(2)).to(weight.dtype)
    stored = stored.where(stored > 0, plain.scale)
    values = _round(groups * unit, stored.float(), best_zero, half).flatten(1)[:, : rows.shape[1]]
    return compressed.QuantizedWeight(
        values.to(torch.int8).reshape(weight.shape), stored, bits, best_zero.to(torch.int8)
    )


def _round(groups: Tensor, scale: Tensor, zero: Tensor, half: int) -> Tensor:
    return (groups / scale.unsqueeze(2) + zero.unsqueeze(2)).round_().clamp_(-half, half - 1)


def _shrink(error: Tensor, stiffness: float) -> Tensor:
    """The sparse part of the error: the generalized soft threshold of the l_p norm."""
    size = error.abs()
    return error.sign() * (size - size.clamp_min(1e-8).pow(_P - 1) / stiffness).clamp_min_(0)
