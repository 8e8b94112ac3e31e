"""``computekit benchmark scenario``: trials of an MLPerf scenario for one model, and its row in the record."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from computekit import StepRun, files, records

from . import latency, samples
from .jobs import Job
from .repeated import repeat
from .rows import put, put_unknown


def run_scenario(run: StepRun, model: Path, data: str | None, job: Job) -> int:
    """Run ``job`` (a scenario with one subject) in fresh processes and fill ``run``; returns the exit status."""
    row = run.row(job.subjects[0].label, sha256=files.sha256(run.input(model)))
    with tempfile.TemporaryDirectory(prefix="computekit-") as folder:
        used = samples.choose(data, job)
        if used is not None:
            job = job.but(samples=samples.save(used, Path(folder) / "samples.pt"))
        trials, status = repeat(run, job, 10 * job.more["duration_s"])
    if job.task == "loadgen":
        _loadgen(run, row, trials)
    else:
        _FIGURES[job.more["scenario"]](run, row, job, trials)
    return status


def _single_stream(_run: StepRun, row: records.Row, _job: Job, trials: list[dict[str, Any]]) -> None:
    calls = [trial["latencies_s"] for trial in trials]
    for q in (0.5, 0.9, 0.99):
        estimate = latency.percentile(calls, q)
        key = f"single_stream_latency_p{100 * q:g}_s"
        if estimate is None:
            put_unknown(row, key, "s", "too few queries for it; give a longer --duration")
        else:
            put(row, key, estimate, "s")


def _offline(_run: StepRun, row: records.Row, job: Job, trials: list[dict[str, Any]]) -> None:
    rates = [trial["samples_per_s"] for trial in trials]
    put(row, "offline_throughput_per_s", latency.over_trials(rates, f"batches of {job.more['max_batch']}"), "1/s")


def _server(run: StepRun, row: records.Row, job: Job, trials: list[dict[str, Any]]) -> None:
    more = job.more
    calls = [trial["latencies_s"] for trial in trials]
    lost = sum(trial["unanswered"] for trial in trials)
    if lost:
        run.note(f"overloaded: {lost} queries were never answered at {more['rate_per_s']:g} per second")
    for q in (0.5, 0.9, 0.99):
        estimate = None if lost or not all(calls) else latency.percentile(calls, q)
        key = f"server_latency_p{100 * q:g}_s"
        if estimate is None:
            put_unknown(row, key, "s", "overloaded" if lost else "too few queries for it; give a longer --duration")
        else:
            put(row, key, estimate, "s")
    goodputs = [trial["goodput_per_s"] for trial in trials]
    if all(goodputs):
        what = f"answered within {1e3 * more['latency_bound_s']:g} ms at {more['rate_per_s']:g} queries per second"
        put(row, "goodput_per_s", latency.over_trials(goodputs, what), "1/s")
    else:
        put_unknown(row, "goodput_per_s", "1/s", f"no query was answered within {1e3 * more['latency_bound_s']:g} ms")
    share = sum(trial["within_bound"] for trial in trials) / len(trials)
    row.quantities["within_bound"] = records.Quantity(
        value=share, unit="1", how="measured", method="share of queries answered within the bound; MLPerf asks for 0.99"
    )
    row.quantities["mean_batch"] = records.Quantity(
        value=sum(trial["mean_batch"] for trial in trials) / len(trials), unit="1", how="measured"
    )


_FIGURES = {"single-stream": _single_stream, "offline": _offline, "server": _server}


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
