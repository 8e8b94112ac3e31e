"""From timed calls to quantities: percentiles of latency and rates of throughput, with intervals over trials."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from computekit import statistics
from computekit.statistics import Estimate


def over_trials(values: Sequence[float], what: str) -> Estimate:
    """Geometric mean of one positive value per trial, with Student's t interval of the logarithms."""
    estimate = statistics.mean_interval([math.log(value) for value in values]).through(math.exp)
    method = f"{what}, geometric mean of {len(values)} trials" + (", Student t interval" if estimate.interval else "")
    return replace(estimate, method=method)


def percentile(trials: Sequence[Sequence[float]], q: float) -> Estimate | None:
    """The ``q`` quantile of latency. None where there are fewer than 1 / (1 - q) calls: no call lies beyond it.

    Calls of one trial share its state of the machine, so the interval comes from the trials' own quantiles; where a
    trial has too few calls for one, the quantile of all calls stands without an interval.
    """
    name = "median" if q == 0.5 else f"p{100 * q:g}"
    needed = math.ceil(round(1 / (1 - q), 6))
    if min(len(calls) for calls in trials) >= needed:
        return over_trials([statistics.quantile(calls, q) for calls in trials], f"{name} call of each trial")
    pooled = [second for calls in trials for second in calls]
    if len(pooled) < needed:
        return None
    return Estimate(statistics.quantile(pooled, q), None, statistics.CONFIDENCE, f"{name} of {len(pooled)} calls")


def throughput(trials: Sequence[Sequence[float]], batch: int) -> Estimate:
    """Samples per second of back-to-back calls with ``batch`` samples each."""
    rates = [batch * len(calls) / math.fsum(calls) for calls in trials]
    return over_trials(rates, f"back-to-back calls with batch size {batch}")
