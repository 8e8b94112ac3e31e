"""``computekit benchmark scenario``: trials of a scenario for one model, and its row in the record."""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path
from typing import Any

from computekit import StepRun, files, records, statistics

from . import latency, samples
from .jobs import Job
from .repeated import repeat
from .rows import put, put_unknown
from .scenarios import Figure, Scenario


def run_scenario(run: StepRun, model: Path, data: str | None, scenario: Scenario, job: Job) -> int:
    """Run ``job`` (``scenario`` with one subject) in fresh processes and fill ``run``; returns the exit status."""
    row = run.row(job.subjects[0].label, sha256=files.sha256(run.input(model)))
    with tempfile.TemporaryDirectory(prefix="computekit-") as folder:
        used = samples.choose(data, job)
        if used is not None:
            job = job.but(samples=samples.save(used, Path(folder) / "samples.pt"))
        trials, status = repeat(run, job, 10 * job.more["duration_s"])
    if job.task == "loadgen":
        _loadgen(run, row, trials)
    else:
        for figure in scenario.figures:
            _put(row, figure, [trial[figure.of] for trial in trials])
        for text in dict.fromkeys(found for trial in trials for found in trial.values() if isinstance(found, str)):
            run.note(text)
    return status


def _put(row: records.Row, figure: Figure, found: list[Any]) -> None:
    """Add ``figure``; ``found`` is its entry of each trial."""
    reason = next((value for value in found if isinstance(value, str)), None)
    if reason is not None:
        put_unknown(row, figure.key, figure.unit, reason)
    elif figure.quantile is not None:
        estimate = latency.percentile(found, figure.quantile)
        if estimate is None:
            put_unknown(row, figure.key, figure.unit, "too few queries for it; give a longer --duration")
        else:
            put(row, figure.key, estimate, figure.unit)
    elif figure.mean == "geometric" and min(found) > 0:
        put(row, figure.key, latency.over_trials(found, figure.method or figure.of), figure.unit)
    else:
        estimate = statistics.mean_interval(found)
        if figure.mean == "share" and estimate.interval is not None:
            low, high = estimate.interval
            estimate = dataclasses.replace(estimate, interval=(max(0.0, low), min(1.0, high)))
        method = f"{figure.method or figure.of}, mean of {len(found)} trials"
        put(row, figure.key, dataclasses.replace(estimate, method=method), figure.unit)


def _loadgen(run: StepRun, row: records.Row, trials: list[dict[str, Any]]) -> None:
    for key, name, unit in (
        ("latency_p90_s", "single_stream_latency_p90_s", "s"),
        ("latency_p99_s", "server_latency_p99_s", "s"),
        ("samples_per_s", "offline_throughput_per_s", "1/s"),
        ("completed_per_s", "server_completed_per_s", "1/s"),
    ):
        values = [trial[key] for trial in trials if key in trial]
        if values:
            put(row, name, latency.over_trials(values, "LoadGen's summary"), unit)
    invalid = sum(not trial["valid"] for trial in trials)
    if invalid:
        run.note(f"LoadGen calls {invalid} of {len(trials)} runs invalid by MLPerf's rules, which ask for longer ones")
