"""An open-loop server: queries arrive at their own times, wait in a queue, and are answered in dynamic batches.

Arrivals do not wait for answers, so a slow answer delays those behind it, as it would in service. The loop runs in one
thread and takes its clock from outside, which also makes it testable without waiting.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

_TICK_S = 1e-9
"""Below a clock's resolution: a pause this short is over, whatever rounding says."""


@dataclass(frozen=True)
class Served:
    """What became of the queries: ``latencies`` in seconds of those answered, in order of arrival."""

    latencies: list[float]
    batches: list[int]
    unanswered: int
    seconds: float


def poisson_arrivals(rate_per_s: float, duration_s: float, chance: random.Random) -> list[float]:
    """Times of a Poisson process within ``duration_s``, in seconds from its start."""
    times = []
    now = chance.expovariate(rate_per_s)
    while now < duration_s:
        times.append(now)
        now += chance.expovariate(rate_per_s)
    return times


def serve(
    arrivals: Sequence[float],
    answer: Callable[[Sequence[int]], None],
    *,
    max_batch: int,
    max_delay_s: float,
    give_up_s: float,
    now: Callable[[], float],
    sleep: Callable[[float], None],
) -> Served:
    """Answer the queries that arrive at ``arrivals`` (sorted, seconds from the start).

    A batch starts when ``max_batch`` queries wait, or when the first of them has waited ``max_delay_s``.
    ``answer(indices)`` runs one batch and returns when it is done. Queries that are unanswered ``give_up_s`` after the
    start are counted and left: the server is overloaded.
    """
    start = now()
    waiting: deque[int] = deque()
    latencies: list[float] = []
    batches: list[int] = []
    coming = 0
    while (coming < len(arrivals) or waiting) and now() - start < give_up_s:
        elapsed = now() - start
        while coming < len(arrivals) and arrivals[coming] <= elapsed + _TICK_S:
            waiting.append(coming)
            coming += 1
        if len(waiting) < max_batch:
            due = arrivals[waiting[0]] + max_delay_s if waiting else float("inf")
            following = arrivals[coming] if coming < len(arrivals) else float("inf")
            # with nobody left to come, waiting longer would fill no batch
            pause = min(due, following) - elapsed
            if pause > _TICK_S and following < float("inf"):
                sleep(pause)
                continue
        batch = [waiting.popleft() for _ in range(min(max_batch, len(waiting)))]
        answer(batch)
        done = now() - start
        batches.append(len(batch))
        latencies += [done - arrivals[index] for index in batch]
    return Served(latencies, batches, len(waiting) + len(arrivals) - coming, now() - start)


def goodput(served: Served, bound_s: float) -> float:
    """Queries per second that were answered within ``bound_s``."""
    return sum(latency <= bound_s for latency in served.latencies) / served.seconds
