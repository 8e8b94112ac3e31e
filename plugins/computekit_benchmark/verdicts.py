"""The trial rule: when is B faster than A, slower, or the same?

A trial is a fresh process that times A and B in turns; its value is the median over its rounds of log(time B / time
A). The trial, not the call, is the unit: calls inside one process share a memory layout and a state of the machine, and
tests on calls find "significant" differences between a model and itself. From at least five trials follows Student's t
interval of the mean log ratio, and the verdict by its position against the margin of equivalence:

* *faster*: the whole 99 % interval lies below -log(1 + margin); *slower*: above +log(1 + margin);
* *same*: the 95 % interval lies within the two; *unresolved*: anything else, or fewer than five trials.

A difference needs 99 % because the rule looks after every trial: in simulation with up to 30 trials, 95 % calls a model
different from itself in 1.5 % of cases where trials scatter by 5 %, and in 13 % where they scatter by 20 %; 99 % in 0.3
and 2.4 %. Where they scatter by 2 % or less, it is 0.1 % or less with either.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from computekit import statistics

MIN_TRIALS = 5
MARGIN = 0.02
CONFIDENCE_OF_DIFFERENCE = 0.99

Verdict = Literal["faster", "slower", "same", "unresolved"]


@dataclass(frozen=True)
class Comparison:
    """B against A: ``ratio`` is time B / time A, so below 1 is faster; ``values`` are the ratios of the trials."""

    a: str
    b: str
    ratio: float
    interval: tuple[float, float] | None
    confidence: float
    verdict: Verdict
    trials: int
    margin: float
    clock: str
    batch_size: int
    values: list[float]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def judge(log_ratios: Sequence[float], margin: float = MARGIN) -> tuple[Verdict, statistics.Estimate]:
    """The verdict from one log ratio per trial, and the mean log ratio with its 95 % interval."""
    estimate = statistics.mean_interval(log_ratios)
    strict = statistics.mean_interval(log_ratios, CONFIDENCE_OF_DIFFERENCE).interval
    if len(log_ratios) < MIN_TRIALS or estimate.interval is None or strict is None:
        return "unresolved", estimate
    limit = math.log1p(margin)
    if strict[1] < -limit:
        return "faster", estimate
    if strict[0] > limit:
        return "slower", estimate
    if -limit <= estimate.interval[0] and estimate.interval[1] <= limit:
        return "same", estimate
    return "unresolved", estimate


def trial_value(a_visits: Sequence[Sequence[float]], b_visits: Sequence[Sequence[float]]) -> float:
    """log(time B / time A) of one trial: the median over rounds, each round two visits of both models."""
    rounds = len(a_visits) // 2
    return statistics.quantile(
        [_log_median(b_visits, i) - _log_median(a_visits, i) for i in range(rounds)],
        0.5,
    )


def _log_median(visits: Sequence[Sequence[float]], index: int) -> float:
    return math.log(statistics.quantile([*visits[2 * index], *visits[2 * index + 1]], 0.5))


def compare(a: str, b: str, log_ratios: Sequence[float], *, margin: float, clock: str, batch_size: int) -> Comparison:
    """The comparison of B with A from one log ratio per trial."""
    verdict, estimate = judge(log_ratios, margin)
    ratio = estimate.through(math.exp)
    return Comparison(
        a=a,
        b=b,
        ratio=ratio.value,
        interval=ratio.interval,
        confidence=ratio.confidence,
        verdict=verdict,
        trials=len(log_ratios),
        margin=margin,
        clock=clock,
        batch_size=batch_size,
        values=[math.exp(value) for value in log_ratios],
    )
