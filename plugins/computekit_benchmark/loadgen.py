"""The same scenarios driven by MLCommons' own LoadGen (``loadgen`` extra), whose rules decide what is a valid run.

Short runs are INVALID by those rules (early stopping asks for more queries, MLPerf for 600 s); the numbers still hold.
"""

from __future__ import annotations

import importlib
import queue
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from computekit import ComputekitError, MissingExtra

from .jobs import Job
from .loading import blaming

if TYPE_CHECKING:
    from .system import SystemUnderTest

SCENARIOS = {"single-stream": "SingleStream", "offline": "Offline", "server": "Server"}
"""The scenarios that LoadGen can drive, and what it calls them."""


def run(job: Job) -> dict[str, Any]:
    """Run the scenario through LoadGen.

    Returns ``summary`` (LoadGen's own lines, by title), ``valid``, and the figure of the scenario from them:
    latency_p90_s, samples_per_s, or latency_p99_s with completed_per_s.
    """
    from .system import POOL, SystemUnderTest

    try:
        lg: Any = importlib.import_module("mlperf_loadgen")
    except ImportError:
        raise MissingExtra("mlcommons-loadgen", "loadgen", "--loadgen") from None
    system = SystemUnderTest(job)
    settings = _settings(lg, job)
    answering = _Answering(lg, system, job)
    with blaming(system.label, "LoadGen"), tempfile.TemporaryDirectory(prefix="computekit-") as folder:
        log = lg.LogSettings()
        log.log_output.outdir = folder
        log.log_output.copy_summary_to_stdout = False
        answerer = lg.ConstructSUT(answering.issue, lambda: None)
        library = lg.ConstructQSL(POOL, POOL, lambda _indices: None, lambda _indices: None)
        try:
            lg.StartTestWithLogSettings(answerer, library, settings, log)
        finally:
            answering.close()
            lg.DestroyQSL(library)
            lg.DestroySUT(answerer)
        summary = parse_summary((Path(folder) / "mlperf_log_summary.txt").read_text(encoding="utf-8"))
    if answering.failure is not None:
        raise answering.failure
    return figures(summary)


def _settings(lg: Any, job: Job) -> Any:
    more = job.more
    settings = lg.TestSettings()
    settings.scenario = getattr(lg.TestScenario, SCENARIOS[more["scenario"]])
    settings.mode = lg.TestMode.PerformanceOnly
    settings.min_duration_ms = settings.max_duration_ms = round(1000 * more["duration_s"])
    settings.min_query_count = 1
    settings.schedule_rng_seed = settings.sample_index_rng_seed = settings.qsl_rng_seed = job.seed + 1
    if more["scenario"] == "server":
        settings.server_target_qps = more["rate_per_s"]
        settings.server_target_latency_ns = round(1e9 * more["latency_bound_s"])
    if more["scenario"] == "offline":
        settings.offline_expected_qps = more["rate_per_s"]
    return settings


class _Answering:
    """Answers LoadGen's queries in a thread of its own, in batches as `serving.serve` forms them."""

    def __init__(self, lg: Any, system: SystemUnderTest, job: Job) -> None:
        self.lg, self.system = lg, system
        self.max_batch = int(job.more["max_batch"])
        self.max_delay_s = job.more["max_delay_s"] if job.more["scenario"] == "server" else 0.0
        self.failure: ComputekitError | None = None
        self.waiting: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self._work, daemon=True)
        self.thread.start()

    def issue(self, samples: Sequence[Any]) -> None:
        for sample in samples:
            self.waiting.put((sample.id, sample.index))

    def close(self) -> None:
        self.waiting.put(None)
        self.thread.join()

    def _work(self) -> None:
        while (batch := self._batch()) is not None:
            if self.failure is None:
                try:
                    with blaming(self.system.label, "answering a batch"):
                        self.system.run([index for _, index in batch])
                except ComputekitError as error:
                    self.failure = error  # LoadGen still waits for every answer
            self.lg.QuerySamplesComplete([self.lg.QuerySampleResponse(identity, 0, 0) for identity, _ in batch])

    def _batch(self) -> list[Any] | None:
        """The next batch; None when LoadGen is done."""
        first = self.waiting.get()
        if first is None:
            return None
        batch, due = [first], time.perf_counter() + self.max_delay_s
        while len(batch) < self.max_batch:
            try:
                following = self.waiting.get(timeout=max(0.0, due - time.perf_counter()))
            except queue.Empty:
                break
            if following is None:
                self.waiting.put(None)
                break
            batch.append(following)
        return batch


def parse_summary(text: str) -> dict[str, str]:
    """``title : value`` lines of LoadGen's summary; one of them, ``Samples per second: value``, lacks a space."""
    pairs = (line.split(":", 1) for line in text.splitlines() if ": " in line)
    return {title.strip(): value.strip() for title, value in pairs}


_FIGURES = {
    "SingleStream": (("90.00 percentile latency (ns)", "latency_p90_s", 1e-9),),
    "Offline": (("Samples per second", "samples_per_s", 1.0),),
    "Server": (
        ("99.00 percentile latency (ns)", "latency_p99_s", 1e-9),
        ("Completed samples per second", "completed_per_s", 1.0),
    ),
}


def figures(summary: dict[str, str]) -> dict[str, Any]:
    """The figures of a summary's scenario, in our units; every summary lists the same percentiles."""
    found: dict[str, Any] = {"summary": summary, "valid": summary.get("Result is") == "VALID"}
    for title, key, scale in _FIGURES.get(summary.get("Scenario", ""), ()):
        if title in summary:
            found[key] = float(summary[title]) * scale
    return found
