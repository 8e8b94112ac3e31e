"""Point estimates with intervals: medians and other quantiles, means, proportions, paired differences, the bootstrap.

Each function returns an `Estimate`; ``estimate.about`` is what `StepRun.put` takes beside the value. Only the bootstrap
needs NumPy; SciPy is needed nowhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Estimate:
    """A value and its two-sided confidence interval, both in the unit of the samples.

    ``interval`` is None where the samples are too few for the asked confidence.
    """

    value: float
    interval: tuple[float, float] | None
    confidence: float
    method: str

    @property
    def about(self) -> dict[str, Any]:
        """The keywords ``interval``, ``confidence`` and ``method`` of a `records.Quantity`."""
        if self.interval is None:
            return {"method": self.method}
        return {"interval": self.interval, "confidence": self.confidence, "method": self.method}

    def through(self, increasing: Callable[[float], float]) -> Estimate:
        """The same estimate on another scale: ``math.exp`` turns a mean of logarithms into a geometric mean."""
        interval = None if self.interval is None else (increasing(self.interval[0]), increasing(self.interval[1]))
        return replace(self, value=increasing(self.value), interval=interval)


# -- quantiles -------------------------------------------------------------------------------------------------------


def quantile(samples: Sequence[float], q: float) -> float:
    """The ``q`` quantile by linear interpolation between order statistics (type 7 of Hyndman and Fan 1996).

    Raises:
        ValueError: there are no samples, or ``q`` is outside 0..1.
    """
    if not samples or not 0 <= q <= 1:
        raise ValueError(f"no {q} quantile of {len(samples)} samples")
    ordered = sorted(samples)
    position = q * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (position - below) * (ordered[above] - ordered[below])


def quantile_interval(samples: Sequence[float], q: float = 0.5, confidence: float = CONFIDENCE) -> Estimate:
    """The ``q`` quantile with the distribution-free interval between two order statistics.

    The number of samples below the true quantile is Binomial(n, q), so the interval from the l-th to the u-th smallest
    sample covers it with probability P(l <= B < u) >= ``confidence`` (David and Nagaraja, Order Statistics, 2003,
    section 7.1). The samples must be independent. With too few samples for that (fewer than 6 for a median at 95 %, 368
    for a p99) there is no interval.
    """
    n = len(samples)
    value = quantile(samples, q)
    alpha = 1 - confidence
    low = _binomial_quantile(alpha / 2, n, q)
    high = _binomial_quantile(1 - alpha / 2, n, q) + 1
    method = f"{_quantile_name(q)} of {n} samples, interval between order statistics"
    if low < 1 or high > n:
        return Estimate(value, None, confidence, f"{_quantile_name(q)} of {n} samples, too few for an interval")
    ordered = sorted(samples)
    return Estimate(value, (ordered[low - 1], ordered[high - 1]), confidence, method)


def _quantile_name(q: float) -> str:
    return "median" if q == 0.5 else f"p{100 * q:g}"


def _binomial_quantile(p: float, n: int, q: float) -> int:
    """The smallest k with P(Binomial(n, q) <= k) >= p."""
    if q in (0.0, 1.0):
        return int(q * n)
    # Below 12 standard deviations under the mean lies less probability than a double can tell from 0.
    k = max(0, math.floor(n * q - 12 * math.sqrt(n * q * (1 - q)) - 12))
    total = _binomial_pmf(k, n, q)
    while total < p and k < n:
        k += 1
        total += _binomial_pmf(k, n, q)
    return k


def _binomial_pmf(k: int, n: int, q: float) -> float:
    log_choose = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
    return math.exp(log_choose + k * math.log(q) + (n - k) * math.log1p(-q))


# -- means -----------------------------------------------------------------------------------------------------------


def mean_interval(samples: Sequence[float], confidence: float = CONFIDENCE) -> Estimate:
    """The mean of independent samples with Student's t interval; no interval for a single sample."""
    n = len(samples)
    if n == 0:
        raise ValueError("no mean of 0 samples")
    mean = math.fsum(samples) / n
    if n == 1:
        return Estimate(mean, None, confidence, "one sample")
    variance = math.fsum((x - mean) ** 2 for x in samples) / (n - 1)
    half = t_quantile(0.5 + confidence / 2, n - 1) * math.sqrt(variance / n)
    return Estimate(mean, (mean - half, mean + half), confidence, f"mean of {n}, Student t interval")


def t_quantile(p: float, degrees: float) -> float:
    """The ``p`` quantile of Student's t distribution with ``degrees`` degrees of freedom, to about 1e-10 relative.

    Bisects the distribution function, which is P(T <= t) = 1 - I_x(degrees/2, 1/2) / 2 with x = degrees / (degrees +
    t^2) for t >= 0 (Abramowitz and Stegun 26.7.1).
    """
    if not 0 < p < 1 or degrees <= 0:
        raise ValueError(f"no t quantile at p={p}, {degrees} degrees of freedom")
    if p < 0.5:
        return -t_quantile(1 - p, degrees)
    low, high = 0.0, 1.0
    while _t_upper_tail(high, degrees) > 1 - p:
        low, high = high, 2 * high
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        if not low < middle < high:
            break
        if _t_upper_tail(middle, degrees) > 1 - p:
            low = middle
        else:
            high = middle
    return high if p > 0.5 else 0.0


def _t_upper_tail(t: float, degrees: float) -> float:
    return 0.5 * _regularized_beta(degrees / (degrees + t * t), degrees / 2, 0.5)


def _regularized_beta(x: float, a: float, b: float) -> float:
    """I_x(a, b) by its continued fraction (Abramowitz and Stegun 26.5.8), evaluated with Lentz's method."""
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    if x > (a + 1) / (a + b + 2):  # where the fraction converges slowly, use the symmetry
        return 1 - _regularized_beta(1 - x, b, a)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    tiny = 1e-300
    c, d = 1.0, 1 / ((1 - (a + b) * x / (a + 1)) or tiny)
    fraction = d
    for m in range(1, 1000):
        for numerator in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / ((1 + numerator * d) or tiny)
            c = (1 + numerator / c) or tiny
            fraction *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return math.exp(log_front) / a * fraction


# -- proportions -----------------------------------------------------------------------------------------------------


def wilson(successes: int, trials: int, confidence: float = CONFIDENCE) -> Estimate:
    """The proportion ``successes / trials`` with Wilson's score interval (Wilson 1927; Newcombe 1998, method 3)."""
    if trials < 1 or not 0 <= successes <= trials:
        raise ValueError(f"no proportion of {successes} in {trials}")
    z = _normal_quantile(confidence)
    p = successes / trials
    centre = (p + z * z / (2 * trials)) / (1 + z * z / trials)
    half = z / (1 + z * z / trials) * math.sqrt(p * (1 - p) / trials + z * z / (4 * trials * trials))
    low, high = max(0.0, centre - half), min(1.0, centre + half)
    # At 0 and n the score interval ends exactly at 0 and 1; rounding must not move it past the value.
    return Estimate(p, (min(low, p), max(high, p)), confidence, f"{successes} of {trials}, Wilson interval")


@dataclass(frozen=True)
class PairedDifference:
    """Two classifiers on the same samples: b right minus a right, in fractions of the samples.

    ``gained`` samples only b gets right, ``lost`` only a; ``p_value`` is the exact two-sided McNemar test.
    """

    difference: Estimate
    gained: int
    lost: int
    p_value: float


def paired_difference(a: Sequence[bool], b: Sequence[bool], confidence: float = CONFIDENCE) -> PairedDifference:
    """Compare per-sample correctness of two models on the same samples, in the same order.

    The interval is Bonett and Price's adjusted Wald interval (2012), which Fagerland, Lydersen and Laake (2014)
    recommend for paired proportions; the test is McNemar's with exact binomial probabilities.

    Raises:
        ValueError: the two have different lengths, or none.
    """
    n = len(a)
    if n != len(b) or n == 0:
        raise ValueError(f"cannot pair {n} with {len(b)} samples")
    gained = sum(1 for x, y in zip(a, b, strict=True) if y and not x)
    lost = sum(1 for x, y in zip(a, b, strict=True) if x and not y)
    up, down = (gained + 1) / (n + 2), (lost + 1) / (n + 2)
    half = _normal_quantile(confidence) * math.sqrt((up + down - (up - down) ** 2) / (n + 2))
    low, high = max(-1.0, up - down - half), min(1.0, up - down + half)
    method = f"{gained} gained, {lost} lost of {n} samples, paired interval (Bonett and Price)"
    estimate = Estimate((gained - lost) / n, (low, high), confidence, method)
    return PairedDifference(estimate, gained, lost, mcnemar(gained, lost))


def mcnemar(gained: int, lost: int) -> float:
    """Two-sided p value of the exact McNemar test: are the discordant pairs split evenly?"""
    n = gained + lost
    if n == 0:
        return 1.0
    return min(1.0, 2 * math.fsum(_binomial_pmf(k, n, 0.5) for k in range(min(gained, lost) + 1)))


def _normal_quantile(confidence: float) -> float:
    return NormalDist().inv_cdf(0.5 + confidence / 2)


# -- the bootstrap ---------------------------------------------------------------------------------------------------


def bootstrap(
    samples: Sequence[float] | NDArray[Any],
    statistic: Callable[[NDArray[Any]], float],
    confidence: float = CONFIDENCE,
    resamples: int = 2000,
    seed: int = 0,
) -> Estimate:
    """``statistic(samples)`` with the percentile bootstrap interval (Efron and Tibshirani 1993, section 13.3).

    Whole entries of the first axis are drawn with replacement, so pass paired samples as an (n, k) array. The same
    seed gives the same interval.
    """
    import numpy

    data = numpy.asarray(samples)
    if len(data) == 0:
        raise ValueError("no bootstrap of 0 samples")
    value = float(statistic(data))
    method = f"bootstrap over {len(data)} samples, {resamples} resamples, seed {seed}, percentile interval"
    if len(data) == 1:
        return Estimate(value, None, confidence, "one sample")
    generator = numpy.random.default_rng(seed)
    draws = [float(statistic(data[generator.integers(0, len(data), len(data))])) for _ in range(resamples)]
    low, high = numpy.quantile(draws, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Estimate(value, (float(low), float(high)), confidence, method)
