"""Inside a measuring process: the scenarios of MLPerf Inference (Reddi et al. 2020) for one model.

* *single-stream*: one query after the other, each of one sample; its figure is the 90th percentile of latency.
* *offline*: all samples are there from the start; its figure is samples per second.
* *server*: queries of one sample arrive as a Poisson process; its figures are the 99th percentile of latency, whether
  99 % keep within the bound, and the rate of those that do (goodput).
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from computekit import devices

from . import compiling, serving
from .jobs import Job
from .loading import blaming, example_inputs, load, prepare
from .timing import Runner, warm_up

if TYPE_CHECKING:
    import torch

POOL = 256
"""Distinct samples that queries draw from."""


class Sut:
    """The system under test, as MLPerf calls it: a model that answers batches of sample indices."""

    def __init__(self, job: Job) -> None:
        import torch

        self.device = prepare(job)
        subject = job.subjects[0]
        model = load(subject, job)
        if job.compile:
            compiling.allow(int(job.more["max_batch"]))
        self.module = compiling.compiled(model.module) if job.compile else model.module
        self.label = subject.label
        with blaming(self.label, "making inputs"):
            self.pool = example_inputs(model, job, POOL)
        with blaming(self.label, "a call with one sample"), torch.inference_mode():
            runner = Runner(self.label, lambda: self.run([0]))
            warm_up(runner, self.device, 0.2, float(job.more["duration_s"]) * 10)

    def run(self, indices: Sequence[int]) -> None:
        """Answer the samples with these indices, and wait until it is done."""
        import torch

        chosen = torch.tensor([index % POOL for index in indices], device=self.device)
        with torch.inference_mode():
            self.module(*(self._of(argument, chosen) for argument in self.pool))
        devices.synchronize(self.device)

    @staticmethod
    def _of(argument: Any, chosen: torch.Tensor) -> Any:
        import torch

        return argument.index_select(0, chosen) if isinstance(argument, torch.Tensor) else argument


def run(job: Job) -> dict[str, Any]:
    """Run the scenario ``more["scenario"]`` for ``more["duration_s"]`` seconds."""
    sut = Sut(job)
    with blaming(sut.label, f"the scenario {job.more['scenario']}"):
        return SCENARIOS[job.more["scenario"]](sut, job)


def _single_stream(sut: Sut, job: Job) -> dict[str, Any]:
    latencies: list[float] = []
    until = time.perf_counter() + job.more["duration_s"]
    while time.perf_counter() < until:
        before = time.perf_counter()
        sut.run([len(latencies)])
        latencies.append(time.perf_counter() - before)
    return {"latencies_s": latencies}


def _offline(sut: Sut, job: Job) -> dict[str, Any]:
    batch = list(range(job.more["max_batch"]))
    sut.run(batch)
    began, samples = time.perf_counter(), 0
    while time.perf_counter() - began < job.more["duration_s"]:
        sut.run(batch)
        samples += len(batch)
    return {"samples_per_s": samples / (time.perf_counter() - began)}


def _server(sut: Sut, job: Job) -> dict[str, Any]:
    more = job.more
    for size in {1, more["max_batch"]}:  # kernels of both extremes are chosen before the clock starts
        sut.run(list(range(size)))
    arrivals = serving.poisson_arrivals(more["rate_per_s"], more["duration_s"], random.Random(job.seed))
    served = serving.serve(
        arrivals,
        sut.run,
        max_batch=more["max_batch"],
        max_delay_s=more["max_delay_s"],
        give_up_s=2 * more["duration_s"],
        now=time.perf_counter,
        sleep=time.sleep,
    )
    return {
        "latencies_s": served.latencies,
        "unanswered": served.unanswered,
        "mean_batch": sum(served.batches) / max(1, len(served.batches)),
        "goodput_per_s": serving.goodput(served, more["latency_bound_s"]),
        "within_bound": sum(x <= more["latency_bound_s"] for x in served.latencies) / max(1, len(arrivals)),
    }


SCENARIOS: dict[str, Callable[[Sut, Job], dict[str, Any]]] = {
    "single-stream": _single_stream,
    "offline": _offline,
    "server": _server,
}
