"""How queries reach a model: scenarios by name, and the hook that adds more.

Those that come along are MLPerf Inference's (Reddi et al. 2020):

* *single-stream*: one query after the other, each of one sample; its figure is the 90th percentile of latency.
* *offline*: all samples are there from the start; its figure is samples per second.
* *server*: queries of one sample arrive as a Poisson process; its figures are the 99th percentile of latency, whether
  99 % keep within the bound, and the rate of those that do (goodput).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import computekit

if TYPE_CHECKING:
    from .system import SystemUnderTest

Finding = float | Sequence[float] | str
"""What a trial found: a number, a number for each query, or a text that says why it is not known."""


@dataclass(frozen=True)
class Load:
    """What the user asks of a scenario: the options of ``computekit benchmark scenario``, and the trial's ``seed``.

    ``duration_s`` is the length of one trial, ``rate_per_s`` the mean rate of arrivals.
    """

    duration_s: float
    rate_per_s: float
    max_batch: int
    max_delay_s: float
    latency_bound_s: float
    seed: int


@dataclass(frozen=True)
class Figure:
    """A quantity that a scenario puts into records: ``key`` and ``unit``, from the entry ``of`` of each trial.

    With a ``quantile`` (0.5 is the median) the entry holds a number for each query; it needs 1 / (1 - quantile) of
    them. Else it is one number, whose ``mean`` over trials is taken: geometric for times and rates, arithmetic for
    counts, and for a share arithmetic with an interval within 0 and 1. Intervals are Student's t over trials.
    ``method`` says in the record what was counted.
    """

    key: str
    unit: str
    of: str
    quantile: float | None = None
    mean: Literal["geometric", "arithmetic", "share"] = "geometric"
    method: str = ""


@dataclass(frozen=True)
class Scenario:
    """A way in which queries reach a model.

    ``run(system, load)`` makes one trial in a process of its own: it calls ``system.run(indices)``, which answers the
    samples with these indices as one batch and returns when that is done, for about ``load.duration_s`` seconds. It
    returns what it found, by name; ``figures`` say which of it goes into the record, and how. A text in the place of a
    value is the reason why it is not known. Further parameters of ``run`` are the user's ``--scenario-args``.
    """

    name: str
    summary: str
    run: Callable[..., Mapping[str, Finding]]
    figures: Sequence[Figure]


@computekit.hookspec
def computekit_benchmark_scenarios() -> Iterable[Scenario]:  # type: ignore[empty-body]
    """Add scenarios, usable as ``computekit benchmark scenario --scenario NAME``.

    Example::

        import time
        from computekit_benchmark import Figure, Scenario
        from computekit_benchmark.scenarios import computekit_benchmark_scenarios

        def pairs(system, load):
            began, calls = time.perf_counter(), 0
            while time.perf_counter() - began < load.duration_s:
                system.run([2 * calls, 2 * calls + 1])
                calls += 1
            return {"rate": 2 * calls / (time.perf_counter() - began)}

        @implements(computekit_benchmark_scenarios)
        def scenarios() -> list[Scenario]:
            return [Scenario("pairs", "two at a time", pairs, [Figure("pairs_throughput_per_s", "1/s", of="rate")])]
    """


def find(name: str) -> Scenario:
    """The scenario called ``name``; raises UnknownName with the nearest ones."""
    from computekit import host

    known = host.current().named("computekit_benchmark_scenarios", Scenario, "scenario")
    if name not in known:
        raise computekit.UnknownName("scenario", name, known)
    return known[name]


def check_arguments(scenario: Scenario, arguments: Mapping[str, Any]) -> None:
    """Raises ComputekitError if ``scenario`` takes other arguments."""
    signature = inspect.signature(scenario.run)
    try:
        signature.bind(None, None, **arguments)
    except TypeError as error:
        known = ", ".join(list(signature.parameters)[2:]) or "none"
        raise computekit.ComputekitError(
            f"--scenario-args do not fit scenario {scenario.name!r}: {error}; it takes: {known}"
        ) from None


def single_stream(system: SystemUnderTest, load: Load) -> dict[str, Finding]:
    """Latency in seconds of each query, one after the other."""
    import time

    latencies: list[float] = []
    until = time.perf_counter() + load.duration_s
    while time.perf_counter() < until:
        before = time.perf_counter()
        system.run([len(latencies)])
        latencies.append(time.perf_counter() - before)
    return {"latencies_s": latencies}


def offline(system: SystemUnderTest, load: Load) -> dict[str, Finding]:
    """Samples per second in batches of ``max_batch``."""
    import time

    batch = list(range(load.max_batch))
    system.run(batch)
    began, samples = time.perf_counter(), 0
    while time.perf_counter() - began < load.duration_s:
        system.run(batch)
        samples += len(batch)
    return {"samples_per_s": samples / (time.perf_counter() - began)}


MOST_QUERIES = 10_000_000
"""So many arrivals of one trial are drawn in seconds and held in memory."""


def server(system: SystemUnderTest, load: Load) -> dict[str, Finding]:
    """Poisson arrivals that wait in a queue and are answered in dynamic batches (`serving.serve`)."""
    import random
    import time

    from . import serving

    if load.rate_per_s * load.duration_s > MOST_QUERIES:
        raise computekit.ComputekitError(
            f"--rate {load.rate_per_s:g} for {load.duration_s:g} s are more than {MOST_QUERIES:,} queries; "
            "give a lower --rate or a shorter --duration"
        )
    for size in {1, load.max_batch}:  # kernels of both extremes are chosen before the clock starts
        system.run(list(range(size)))
    arrivals = serving.poisson_arrivals(load.rate_per_s, load.duration_s, random.Random(load.seed))
    served = serving.serve(
        arrivals,
        system.run,
        max_batch=load.max_batch,
        max_delay_s=load.max_delay_s,
        give_up_s=2 * load.duration_s,
        now=time.perf_counter,
        sleep=time.sleep,
    )
    lost = f"overloaded: at {load.rate_per_s:g} queries per second some were never answered"
    if not arrivals:
        none = "no query arrived in one of the trials; give a longer --duration or a higher --rate"
        return dict.fromkeys(("latencies_s", "goodput_per_s", "within_bound", "mean_batch"), none)
    within = sum(latency <= load.latency_bound_s for latency in served.latencies)
    return {
        "latencies_s": lost if served.unanswered else served.latencies,
        "answered_s": served.latencies,
        "unanswered": served.unanswered,
        "mean_batch": sum(served.batches) / max(1, len(served.batches)),
        "goodput_per_s": serving.goodput(served, load.latency_bound_s),
        "within_bound": within / len(arrivals),
    }


_QUANTILES = (0.5, 0.9, 0.99)

BUILTIN = (
    Scenario(
        "single-stream", "one query after the other, as on a phone", single_stream,
        [Figure(f"single_stream_latency_p{100 * q:g}_s", "s", "latencies_s", q) for q in _QUANTILES],
    ),
    Scenario(
        "offline", "all samples are there from the start", offline,
        [Figure("offline_throughput_per_s", "1/s", "samples_per_s", method="batches of --max-batch")],
    ),
    Scenario(
        "server", "queries arrive at random times and queue", server,
        [
            *(Figure(f"server_latency_p{100 * q:g}_s", "s", "latencies_s", q) for q in _QUANTILES),
            Figure("goodput_per_s", "1/s", "goodput_per_s", method="queries answered within --latency-bound"),
            Figure("within_bound", "1", "within_bound", mean="share",
                   method="share of queries answered within the bound, for which MLPerf asks 0.99"),
            Figure("mean_batch", "1", "mean_batch", mean="arithmetic"),
        ],
    ),
)  # fmt: skip
