"""Where the 8-bit grid of an activation begins and ends: ranges chosen from a histogram of the values.

Few values are large. A grid over all of them wastes steps on what hardly ever occurs, a narrower one clips what does;
the observers differ in how they weigh the two. Importing this imports torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

BINS = 2048
_LEVELS = 256
_KEPT = 0.9999  # of the values, by "percentile"
_SHRINKINGS = 80  # how many narrower ranges are tried, down to a fifth

Range = tuple[float, float]


class Histogram:
    """Counts of the values that it was shown, in `BINS` bins over their range."""

    def __init__(self) -> None:
        self.low, self.high = 0.0, 0.0
        self.counts = torch.zeros(BINS, dtype=torch.float64)

    def __call__(self, input: Tensor) -> None:
        """Take in a tensor of any shape; when the range grows, what was counted moves to the bins it now falls into."""
        values = input.detach().float().flatten()
        if not values.numel():
            return
        low, high = min(self.low, values.min().item()), max(self.high, values.max().item())
        if low == high:
            return  # zeros only, so far
        if (low, high) != (self.low, self.high):
            moved = ((self.centers() - low) * (BINS / (high - low))).long().clamp_(0, BINS - 1)
            self.counts = torch.zeros_like(self.counts).index_add_(0, moved, self.counts)
            self.low, self.high = low, high
        self.counts += torch.histc(values, BINS, low, high).double()

    def centers(self) -> Tensor:
        """The middle of each bin, float64 (BINS,)."""
        width = (self.high - self.low) / BINS
        return self.low + width * (torch.arange(BINS, dtype=torch.float64) + 0.5)


def min_max(seen: Histogram) -> Range:
    """All values."""
    return seen.low, seen.high


def percentile(seen: Histogram) -> Range:
    """All but the largest and the smallest 0.005% of the values."""
    total = seen.counts.sum()
    if not total:
        return min_max(seen)
    below = seen.counts.cumsum(0) / total
    centers = seen.centers()
    first = int((below > (1 - _KEPT) / 2).nonzero()[0])
    last = int((below >= 1 - (1 - _KEPT) / 2).nonzero()[0])
    return min(centers[first].item(), 0.0), max(centers[last].item(), 0.0)


def mean_squared_error(seen: Histogram) -> Range:
    """The range with the least squared error of rounding and clipping."""
    centers = seen.centers()

    def error(low: float, high: float) -> float:
        step = (high - low) / (_LEVELS - 1)
        rounded = ((centers - low) / step).round_().clamp_(0, _LEVELS - 1).mul_(step).add_(low)
        return float((seen.counts * (rounded - centers).square()).sum())

    return _least(seen, error)


def entropy(seen: Histogram) -> Range:
    """The range whose grid tells least apart from the full distribution, by the Kullback-Leibler divergence.

    As TensorRT does (Migacz, "8-bit inference with TensorRT", 2017): what is clipped counts as the outermost value, and
    each level's share is spread over those of its bins that hold anything. Zeros, of which there are many after a
    ReLU, count as rarely as what is next to them: every grid holds them exactly.
    """
    centers, counts = seen.centers(), seen.counts.clone()
    if seen.high > seen.low:
        zero = min(BINS - 1, int(-seen.low / (seen.high - seen.low) * BINS))
        counts[zero] = counts[zero + 1 if zero + 1 < BINS else zero - 1]
    filled = (counts > 0).double()

    def divergence(low: float, high: float) -> float:
        step = (high - low) / (_LEVELS - 1)
        inside = (centers >= low - step / 2) & (centers <= high + step / 2)
        first, last = int(inside.nonzero()[0]), int(inside.nonzero()[-1])
        clipped = counts[first : last + 1].clone()
        level = ((centers[first : last + 1] - low) / step).round_().long().clamp_(0, _LEVELS - 1)
        kept = filled[first : last + 1]
        mass = torch.zeros(_LEVELS, dtype=torch.float64).index_add_(0, level, clipped)
        bins = torch.zeros(_LEVELS, dtype=torch.float64).index_add_(0, level, kept)
        coarse = (mass / bins.clamp_min(1))[level] * kept
        clipped[0] += counts[:first].sum()
        clipped[-1] += counts[last + 1 :].sum()
        p, q = clipped / clipped.sum(), coarse / coarse.sum()
        both = (p > 0) & (q > 0)
        missed = p[(p > 0) & (q == 0)].sum()  # outliers that fell into empty bins: no level stands for them
        return float((p[both] * (p[both] / q[both]).log()).sum() + missed * 20)

    return _least(seen, divergence)


def _least(seen: Histogram, cost: Callable[[float, float], float]) -> Range:
    """Of ranges ever narrower, first from above and then from below, the one of least ``cost``; ties: the wider."""
    low, high = seen.low, seen.high
    if not seen.counts.any():
        return low, high
    if high > 0:
        high = min(_narrower(high), key=lambda end: cost(low, end))
    if low < 0:
        low = min(_narrower(low), key=lambda end: cost(end, high))
    return low, high


def _narrower(end: float) -> Iterator[float]:
    return (end * (1 - 0.8 * step / _SHRINKINGS) for step in range(_SHRINKINGS + 1))


RANGES: dict[str, Callable[[Histogram], Range]] = {
    "min-max": min_max,
    "percentile": percentile,
    "mse": mean_squared_error,
    "entropy": entropy,
}
