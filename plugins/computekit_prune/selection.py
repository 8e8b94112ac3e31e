"""Which channels go: scores, ranking, and how many of each group. Importing this imports torch."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from .coupling import Coupled
from .criteria import Criterion

SMALLEST_SHARE = 0.1
"""Share of a group that global ranking leaves at least, so that no layer closes."""


def scores(group: Coupled, criterion: Criterion) -> Tensor:
    """Importance of each channel of ``group``, (channels,), summed over the coupled layers."""
    total = torch.zeros(group.channels, dtype=torch.float64)
    for member in group.members:
        given = [member.weights.float()]
        if criterion.needs_gradients and member.gradients is not None:
            given.append(member.gradients.float())
        total.index_add_(0, member.roots, criterion.score(*given).double())
    if group.alike:
        return total.view(group.blocks, -1).mean(0).repeat(group.blocks)
    return total


def uniform(groups: Sequence[Coupled], importance: Sequence[Tensor], ratio: float, round_to: int) -> list[list[int]]:
    """Channels to remove from each group: the same ``ratio`` of each."""
    return [
        _lowest(group, score, group.channels * (1 - ratio), round_to)
        for group, score in zip(groups, importance, strict=True)
    ]


def ranked(groups: Sequence[Coupled], importance: Sequence[Tensor], ratio: float, round_to: int) -> list[list[int]]:
    """Channels to remove from each group: the ``ratio`` of all channels with the lowest scores.

    A group's scores are divided by their mean, which makes layers comparable.
    """
    relative = [score / score.mean().clamp_min(1e-12) for score in importance]
    together = torch.cat(relative)
    threshold = together.sort().values[max(0, round(len(together) * ratio) - 1)]
    plan = []
    for group, score in zip(groups, relative, strict=True):
        kept = max(int((score > threshold).sum()), group.channels * SMALLEST_SHARE)
        plan.append(_lowest(group, score, kept, round_to))
    return plan


def _lowest(group: Coupled, score: Tensor, keep: float, round_to: int) -> list[int]:
    """Indices of the least important channels, so that about ``keep`` are left.

    What is left is the next multiple of ``round_to`` and of the number of blocks, or everything.
    """
    size = group.channels // group.blocks
    step = round_to // math.gcd(round_to, group.blocks)
    # a whole number of channels may come out of the multiplication a little above itself
    left = min(size, max(step, step * math.ceil(keep / group.blocks / step - 1e-9)))
    order = score.view(group.blocks, size).argsort(dim=1, stable=True)[:, : size - left]
    starts = torch.arange(group.blocks)[:, None] * size
    return sorted((order + starts).flatten().tolist())
