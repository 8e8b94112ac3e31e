"""Inside a measuring process: one trial, which times several models in turns.

The models are created in random order. Then rounds follow until the time is spent; each round visits the models in a
random order and then in the reverse order (ABBA for two), so that a drift of the machine hits all of them alike. A
visit makes a few untimed calls, because the previous model has filled the caches, and then times single calls.
"""

from __future__ import annotations

import functools
import gc
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from computekit import devices

from . import compiling
from .jobs import Job
from .loading import ModelFault, blaming, example_inputs, load, prepare

if TYPE_CHECKING:
    import torch

MAX_ROUNDS = 100
MIN_ROUNDS = 3
VISIT_S = 5e-3
MAX_CALLS = 5
SETTLE_S = 2e-3
MOST_WARM_UP_CALLS = 200
LONG_CALL_S = 50e-3
"""A call this long fills the caches itself, so a visit needs no untimed call."""

LONG_ROUND_S = 5.0
"""A round this long stands alone."""

REMEDY = "give more --time-budget or a smaller --batch-size"


@dataclass
class Runner:
    """A model at one batch size, ready to be called; ``visits`` holds seconds per call, one list per visit."""

    label: str
    call: Callable[[], Any]
    first_call_s: float = 0.0
    warm_up_s: list[float] = field(default_factory=list)
    visits: list[list[float]] = field(default_factory=list)

    @property
    def pace_s(self) -> float:
        """About how long a call takes: the fastest of the later warm-up calls."""
        return min(self.warm_up_s[len(self.warm_up_s) // 2 :])


def trial(job: Job) -> dict[str, Any]:
    """Time all subjects of ``job``; ``more`` holds batches, seconds (per batch size), clock, and longest_s: by batch
    size, the longest call that the budget allows.

    Returns for each batch size and model: the first call, the warm-up calls, and the calls of each visit, in seconds.
    A batch size other than the first at which a model fails or is too slow is left out and named in ``failures``.
    """
    import torch

    device = prepare(job)
    order = list(range(len(job.subjects)))
    chance = random.Random(job.seed)
    chance.shuffle(order)
    loaded = {}
    if job.compile:
        compiling.allow(len(job.subjects) * len(job.more["batches"]))
    for index in order:
        subject = job.subjects[index]
        model = load(subject, job)
        loaded[index] = (model, compiling.compiled(model.module) if job.compile else model.module)
    measured: dict[str, Any] = {}
    failures: dict[str, str] = {}
    for batch, longest_s in zip(job.more["batches"], job.more["longest_s"], strict=True):
        try:
            with torch.inference_mode():  # entered here: each call would pay 3 us for its own
                runners = []
                for index in order:
                    model, module = loaded[index]
                    label = job.subjects[index].label
                    with blaming(label, f"a call with batch size {batch}"):
                        runners.append(Runner(label, functools.partial(module, *example_inputs(model, job, batch))))
                        warm_up(runners[-1], device, job.more["seconds"] / 10, longest_s, REMEDY)
                interleave(runners, job.more["seconds"], make_timer(job.more["clock"], device), chance)
        except ModelFault as fault:
            if batch == job.more["batches"][0]:
                raise
            failures[str(batch)] = str(fault)
            continue
        by_label = {runner.label: runner for runner in runners}
        measured[str(batch)] = [
            {
                "first_call_s": by_label[s.label].first_call_s,
                "warm_up_s": by_label[s.label].warm_up_s,
                "visits": by_label[s.label].visits,
            }
            for s in job.subjects
        ]
    return {"batches": measured, "failures": failures, "order": [job.subjects[i].label for i in order]}


def warm_up(runner: Runner, device: torch.device, seconds: float, longest_s: float, remedy: str) -> None:
    """Call until caches, allocators and lazily chosen kernels have settled: at least 3 calls and ``seconds``.

    Raises:
        ModelFault: a call outlasts ``longest_s``; the first may, because it may compile.
    """

    def timed() -> float:
        before = time.perf_counter()
        runner.call()
        devices.synchronize(device)
        return time.perf_counter() - before

    started = time.perf_counter()
    runner.first_call_s = timed()
    runner.warm_up_s.append(timed())
    check_pace(runner.label, runner.warm_up_s[0], longest_s, remedy)
    enough = 1 if runner.warm_up_s[0] > longest_s / 10 else 3
    while len(runner.warm_up_s) < enough or (
        time.perf_counter() - started < seconds and len(runner.warm_up_s) < MOST_WARM_UP_CALLS
    ):
        runner.warm_up_s.append(timed())


def check_pace(label: str, call_s: float, longest_s: float, remedy: str) -> None:
    """Raises ModelFault where a call of ``call_s`` is too long to be measured in the time that there is."""
    if call_s > longest_s:
        raise ModelFault(
            label, f"one call takes {call_s:.1f} s, and there is time for calls of {longest_s:.3g} s; {remedy}"
        )


def interleave(runners: list[Runner], seconds: float, timer: Timer, chance: random.Random) -> None:
    """Visit the runners in rounds until ``seconds`` per runner are spent; fills their ``visits``."""
    gc.collect()
    gc.disable()
    try:
        deadline = time.perf_counter() + seconds * len(runners)
        least = 1 if 2 * sum(runner.pace_s for runner in runners) > LONG_ROUND_S else MIN_ROUNDS
        for done in range(MAX_ROUNDS):
            if done >= least and time.perf_counter() > deadline:
                break
            turn = list(runners)
            chance.shuffle(turn)
            for runner in [*turn, *reversed(turn)]:
                _visit(runner, timer)
    finally:
        gc.enable()


def _visit(runner: Runner, timer: Timer) -> None:
    if runner.pace_s < LONG_CALL_S:
        until = time.perf_counter() + SETTLE_S
        runner.call()
        while time.perf_counter() < until:
            runner.call()
    calls = max(1, min(MAX_CALLS, int(VISIT_S / runner.pace_s)))
    runner.visits.append(timer(runner.call, calls))


Timer = Callable[[Callable[[], Any], int], list[float]]
"""Times ``calls`` calls one by one, in seconds."""


def _nothing() -> None:
    """On the CPU there is nothing to wait for, and asking costs a microsecond."""


def make_timer(clock: str, device: torch.device) -> Timer:
    if clock == "device":
        return _device_timer
    now = time.process_time if clock == "cpu" else time.perf_counter
    wait = _nothing if device.type == "cpu" else functools.partial(devices.synchronize, device)

    def timed(call: Callable[[], Any], calls: int) -> list[float]:
        samples = []
        wait()
        for _ in range(calls):
            before = now()
            call()
            wait()
            samples.append(now() - before)
        return samples

    return timed


def _device_timer(call: Callable[[], Any], calls: int) -> list[float]:
    """CUDA events around each call: the device's own time, without the launch overhead that a queue hides."""
    import torch

    def mark() -> torch.cuda.Event:
        return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]

    marks = [(mark(), mark()) for _ in range(calls)]
    for begin, end in marks:
        begin.record()
        call()
        end.record()
    torch.cuda.synchronize()
    return [begin.elapsed_time(end) / 1e3 for begin, end in marks]
