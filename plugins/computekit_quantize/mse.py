"""Scales that minimize the squared error of a group instead of keeping every value within half a step.

With 4 bits the largest value of a group costs all others resolution: a smaller scale clips it and rounds the rest more
finely. The grid [-8, 7] has one more step on one side; a negative scale puts that step where the larger values are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from computekit.models.compressed import QuantizedWeight

_CHUNK = 1 << 16
_RATIOS = (1.0, 0.95, 0.9, 0.85, 0.8, 0.75)


def quantize(
    weight: torch.Tensor, bits: int, group: int | None, name: str, columns: torch.Tensor | None = None
) -> QuantizedWeight:
    """Round ``weight`` (out, ...) with, per group, the best of 12 scales: six ranges, either way round.

    ``columns`` (columns,) is what a squared error counts in each column; the same in all where it is None.

    Raises:
        NonFinite: the weight holds NaN or infinity.
    """
    import torch

    from computekit.models import compressed

    plain = compressed.quantize(weight, bits, group, name)
    rows = weight.flatten(1)
    size = compressed.group_size(rows.shape[1], group)
    missing = -rows.shape[1] % size
    values, scale = plain.values.flatten(1), plain.scale
    counts = None if columns is None else torch.nn.functional.pad(columns, (0, missing)).reshape(-1, size)
    step = max(1, _CHUNK // rows.shape[1])
    for start in range(0, rows.shape[0], step):
        part = rows[start : start + step].float()
        groups = torch.nn.functional.pad(part, (0, missing)).reshape(part.shape[0], -1, size)
        best = _best_scale(groups, scale[start : start + step], 1 << (bits - 1), counts)
        scale[start : start + step] = best
        integers = _round(groups, best.float(), 1 << (bits - 1))
        values[start : start + step] = integers.flatten(1)[:, : rows.shape[1]]
    return compressed.QuantizedWeight(values.reshape(weight.shape), scale, bits)


def _best_scale(groups: torch.Tensor, plain: torch.Tensor, half: int, counts: torch.Tensor | None) -> torch.Tensor:
    """groups (rows, groups, size) -> scales (rows, groups) in the type of ``plain``, which are the first candidates."""
    import torch

    low, high = groups.amin(2), groups.amax(2)
    flipped = -torch.maximum(-low / (half - 0.5), high / (half + 0.5))
    best, least = plain, _error(groups, plain.float(), half, counts)
    for full in (plain, flipped.where(flipped < 0, 1.0)):
        for ratio in _RATIOS:
            candidate = (full.float() * ratio).to(plain.dtype)
            candidate = candidate.where(candidate != 0, plain)
            error = _error(groups, candidate.float(), half, counts)
            best, least = candidate.where(error < least, best), error.minimum(least)
    return best


def _round(groups: torch.Tensor, scale: torch.Tensor, half: int) -> torch.Tensor:
    return (groups / scale.unsqueeze(2)).round_().clamp_(-half, half - 1)


def _error(groups: torch.Tensor, scale: torch.Tensor, half: int, counts: torch.Tensor | None) -> torch.Tensor:
    """Sum of squared errors of each group, weighted with ``counts`` (groups, size): (rows, groups)."""
    square = _round(groups, scale, half).mul_(scale.unsqueeze(2)).sub_(groups).square_()
    return square.sum(2) if counts is None else square.mul_(counts).sum(2)
