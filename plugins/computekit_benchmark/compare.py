"""``computekit benchmark models``: measure models, compare them with the first, and fill the record."""

from __future__ import annotations

import dataclasses
import math
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from computekit import ComputekitError, Hardware, StepRun, files, records, statistics
from computekit.statistics import Estimate

from . import inside, jobs, latency, machine, samples
from .campaign import INTERRUPTION, TRIAL_BUDGETS, Campaign
from .jobs import Job, JobFailed
from .rows import put, put_unknown, significant
from .verdicts import MIN_TRIALS, Comparison

PERCENTILES = (0.9, 0.95, 0.99)
EXAMINING_S = 300.0
"""Enough for a pass over any test split that one would evaluate here."""


@dataclass(frozen=True)
class Asked:
    """What to measure of the models, and how long; see the options of ``benchmark models``."""

    batch_size: int
    throughput_batches: Sequence[int]
    margin: float
    clock: str
    budget_s: float
    numerics: bool = False
    roofline: bool = False
    ceilings: Hardware | None = None


def compare_models(
    run: StepRun,
    models: Sequence[Path],
    names: Sequence[str],
    data: str | None,
    job: Job,
    asked: Asked,
) -> Campaign:
    """Fill ``run`` with one row per model and the comparisons.

    ``job`` holds what all measurements share; its only subject stands for the architecture. Without ``data`` and an
    input shape, the data set is the one that the first model remembers. Returns the finished campaign.
    """
    labels = _labels(models, names)
    hashes = [files.sha256(run.input(model)) for model in models]
    for i, digest in enumerate(hashes):
        first = hashes.index(digest)
        if first < i:
            run.note(
                f"{labels[first]} and {labels[i]} are the same bytes: this compares a model with itself, "
                "so any difference is noise of the measurement"
            )
    shared = job.subjects[0]
    subjects = tuple(
        dataclasses.replace(shared, label=label, path=str(model)) for label, model in zip(labels, models, strict=True)
    )
    job = job.but(subjects=subjects, device=str(run.device), threads=run.threads, seed=run.seed)
    batches = list(dict.fromkeys([asked.batch_size, *asked.throughput_batches]))
    with tempfile.TemporaryDirectory(prefix="computekit-") as folder:
        used = samples.choose(data, job)
        if used is not None:
            run.details["data"] = used.describe()
            job = job.but(samples=samples.save(used, Path(folder) / "samples.pt"))
        job, examined, interrupted = _examine_all(run, job, asked)
        campaign = Campaign(job, batches, asked.budget_s, asked.margin, asked.clock)
        campaign.ended = INTERRUPTION if interrupted else None
        watch = machine.Watch()
        _run_trials(run, campaign)
        noise = watch.report()
        position = {subject.label: i for i, subject in enumerate(job.subjects)}
        for label, digest, model in zip(labels, hashes, models, strict=True):
            row = run.row(label, sha256=digest)
            _put_size(row, model, examined[label])
            if used is not None:
                _put_quality(run, row, used.task, examined[label], examined[labels[0]])
            if label in position and campaign.trials:
                _put_timing(row, campaign, position[label])
            else:
                reason = str(examined[label].get("error", campaign.ended))
                put_unknown(row, "latency_s", "s", reason)
                put_unknown(row, "throughput_per_s", "1/s", reason)
        comparisons = [c for batch in batches for c in campaign.comparisons(batch)]
        _report(run, campaign, comparisons, noise)
        if not interrupted:
            _look_inside(run, job, asked, campaign, run.output(models[0].parent / "roofline.svg").parent)
    return campaign


def _look_inside(run: StepRun, job: Job, asked: Asked, campaign: Campaign, folder: Path) -> None:
    """Numerics and roofline where they are asked for; what was timed before is kept, whatever happens to them."""
    try:
        if asked.numerics:
            inside.show_numerics(run, job, asked.batch_size)
        if asked.roofline:
            inside.show_roofline(run, job, asked.batch_size, asked.ceilings, folder)
    except KeyboardInterrupt:
        campaign.ended = INTERRUPTION
        run.details["measured"]["partial"] = True
        run.note("partial: interrupted while looking inside the models")


def _labels(models: Sequence[Path], names: Sequence[str]) -> list[str]:
    """One distinct label per model: those given, else the file's stem, with the folder where stems are equal."""
    if names and len(names) != len(models):
        raise ComputekitError(f"{len(names)} --name for {len(models)} models; give one for each, in their order")
    if len(set(names)) < len(names):
        raise ComputekitError("two models have the same --name; tables could not tell them apart")
    if names:
        return list(names)
    labels = [model.stem for model in models]
    if len(set(labels)) < len(labels):
        labels = [str(model) for model in models]
    seen: dict[str, int] = {}
    for i, label in enumerate(labels):
        seen[label] = seen.get(label, 0) + 1
        if seen[label] > 1:
            labels[i] = f"{label} #{seen[label]}"
    return labels


def _examine_all(run: StepRun, job: Job, asked: Asked) -> tuple[Job, dict[str, dict[str, Any]], bool]:
    """The job with the subjects that can be timed, what `isolated.examine` says of each model, and whether Ctrl-C came
    in between.

    Raises:
        JobFailed: the first model, or all others, cannot be run.
    """
    examined: dict[str, dict[str, Any]] = {}
    failures = []
    more = {"batch": asked.batch_size, "longest_s": asked.budget_s / len(job.subjects)}
    with run.progress(len(job.subjects), "examining", "model") as bar:
        for subject in job.subjects:
            ask = job.but(task="isolated", subjects=(subject,), more=more)
            try:
                found = jobs.run(ask, EXAMINING_S + TRIAL_BUDGETS * asked.budget_s)
            except KeyboardInterrupt:
                if not examined:
                    raise
                break
            except JobFailed as failure:
                if subject is job.subjects[0]:
                    raise
                failures.append(failure)
                found = {"error": failure.problem}
                run.note(f"{subject.label}: {failure.problem}; it was not timed")
            examined[subject.label] = found
            bar.update()
    interrupted = len(examined) < len(job.subjects)
    for subject in job.subjects:
        examined.setdefault(subject.label, {"error": INTERRUPTION})
    sound = tuple(subject for subject in job.subjects if "error" not in examined[subject.label])
    if len(sound) == 1 and failures:
        raise failures[0]
    _check_outputs(run, examined)
    return job.but(subjects=sound), examined, interrupted


def _check_outputs(run: StepRun, examined: dict[str, dict[str, Any]]) -> None:
    """Say what makes the models no fair comparison: other output shapes, NaNs, memory that grows."""
    shapes = {label: found["output_shape"] for label, found in examined.items() if "output_shape" in found}
    first = next(iter(shapes))
    for label, found in examined.items():
        if label in shapes and shapes[label] != shapes[first]:
            run.note(f"{label} returns shape {shapes[label]}, {first} {shapes[first]}: they do not do the same job")
        if "other_shape" in found:
            run.note(
                f"{label} returns shape {found['output_shape']} in one call and {found['other_shape']} in the next, "
                "for the same inputs: its times are of different jobs"
            )
        if found.get("nonfinite"):
            run.note(f"{label} returns {found['nonfinite']} values that are NaN or infinite")
        if found.get("grows_bytes_per_call", 0) > 4096:
            run.note(f"{label} keeps {found['grows_bytes_per_call']:.0f} more bytes with every call: it leaks memory")


def _run_trials(run: StepRun, campaign: Campaign) -> None:
    with run.progress(MIN_TRIALS, "trials", "trial") as bar:

        def after_trial(_campaign: Campaign) -> None:
            bar.update()

        if campaign.ended is None:
            try:
                campaign.run(after_trial)
            except KeyboardInterrupt:  # before the first trial; what is known of the models by now is kept
                campaign.ended = INTERRUPTION
    for failure in campaign.failures:
        run.note(f"a trial was lost and does not count: {failure}")
    for trial in campaign.trials[:1]:
        for batch, failure in trial["failures"].items():
            run.note(f"batch size {batch} was left out: {failure}")
    if campaign.ended:
        run.note(
            f"partial: {campaign.ended} after {len(campaign.trials)} trials; {MIN_TRIALS} are needed for a verdict"
        )


def _put_size(row: records.Row, model: Path, found: dict[str, Any]) -> None:
    row.quantities["file_bytes"] = records.Quantity(value=files.size_bytes(model), unit="B", how="measured")
    if found.get("parameters") is not None:
        row.quantities["parameters"] = records.Quantity(value=found["parameters"])
    if "compile_s" in found:
        row.quantities["compile_s"] = records.Quantity(
            value=significant(found["compile_s"]), unit="s", how="measured",
            method="first call less the second, alone in a fresh process; the compiler's disk cache may have helped",
        )  # fmt: skip
    for key, unit, method in (
        ("peak_memory_bytes", "B", "weights, inputs and activations of one call, alone in a fresh process"),
        ("energy_j", "J", "counter of the whole device, per sample, at full load"),
    ):
        if key in found:
            value = found[key]
            row.quantities[key] = records.Quantity(value=value, unit=unit, how="measured", method=method)
        else:
            reason = found.get(key.rpartition("_")[0] + "_reason") or found.get("error") or "not measured"
            put_unknown(row, key, unit, str(reason))


def _put_quality(run: StepRun, row: records.Row, task: str, found: dict[str, Any], first: dict[str, Any]) -> None:
    """The metric on the test split, and its difference to the first model's, sample by sample."""
    text = task == "language-modeling"
    metric, key, unit = ("perplexity", "perplexity_ratio", "") if text else ("accuracy", "accuracy_difference", "1")
    if "quantity" not in found:
        reason = str(found.get("error") or found.get("cut") or "the evaluation ended the process")
        put_unknown(row, metric, unit, reason)
        if "error" not in found:
            run.note(f"{row.label}: {reason}; its {metric} is unknown")
        return
    row.quantities[metric] = records.Quantity(**found["quantity"], unit=unit)
    first_label = run.rows[0].label
    if found is first:
        value = 0.0 if metric == "accuracy" else 1.0
        row.quantities[key] = records.Quantity(value=value, unit="1", method="the others are compared with it")
        return
    if "quantity" not in first:
        put_unknown(row, key, "1", f"the {metric} of {first_label} is unknown")
        return
    if metric == "accuracy":
        paired = statistics.paired_difference(first["outcomes"], found["outcomes"])
        estimate = paired.difference
        method = f"against {first_label}: {estimate.method}; McNemar p = {paired.p_value:.3g}"
    else:
        pairs = zip(first["outcomes"], found["outcomes"], strict=True)
        estimate = statistics.mean_interval([b - a for a, b in pairs]).through(math.exp)
        method = f"against {first_label}: exp of the mean difference per window, {estimate.method}"
    about = {**estimate.about, "method": method}
    row.quantities[key] = records.Quantity(value=estimate.value, unit="1", **about)


def _put_timing(row: records.Row, campaign: Campaign, index: int) -> None:
    batch = campaign.batches[0]
    trials = campaign.calls(index, batch)
    name = "cpu_time" if campaign.clock == "cpu" else "latency"
    median = latency.percentile(trials, 0.5)
    assert median is not None
    medians = [significant(sorted(calls)[len(calls) // 2]) for calls in trials]
    put(row, f"{name}_s", median, "s", medians)
    for q in PERCENTILES:
        estimate = latency.percentile(trials, q)
        key = f"{name}_p{100 * q:g}_s"
        if estimate is None:
            count = sum(len(calls) for calls in trials)
            put_unknown(row, key, "s", f"{count} calls are too few for it; give more --time-budget")
        else:
            put(row, key, estimate, "s")
    put(row, "first_call_s", latency.over_trials(campaign.first_calls(index), "first call"), "s")
    if campaign.clock == "cpu":
        put_unknown(row, "latency_s", "s", "timed with --clock cpu")
        put_unknown(row, "throughput_per_s", "1/s", "timed with --clock cpu")
        return
    rates = {b: latency.throughput(campaign.calls(index, b), b) for b in campaign.batches if campaign.calls(index, b)}
    best = max(rates.values(), key=lambda estimate: estimate.value)
    put(row, "throughput_per_s", best, "1/s")


def _report(run: StepRun, campaign: Campaign, comparisons: list[Comparison], noise: dict[str, Any]) -> None:
    first = run.rows[0]
    first.quantities["latency_ratio"] = records.Quantity(value=1.0, unit="1", method="the others are compared with it")
    first.quantities["verdict"] = records.Quantity(value="baseline", method="the others are compared with it")
    for row in run.rows:
        for c in comparisons:
            if c.b == row.label and c.batch_size == campaign.batches[0]:
                put(row, "latency_ratio", Estimate(c.ratio, c.interval, c.confidence, f"time against {c.a}"), "1")
                row.quantities["verdict"] = records.Quantity(
                    value=c.verdict,
                    how="measured",
                    method=f"trial rule: {c.trials} trials, margin {c.margin:g}, {c.clock} clock, against {c.a}",
                )
    run.details["measured"] = {
        "pairs": [c.as_dict() for c in comparisons],
        "partial": campaign.ended is not None,
        "machine": noise,
        "trials": [
            {
                "order": trial["order"],
                "calls_s": {
                    batch: {
                        subject.label: [significant(s) for visit in found["visits"] for s in visit]
                        for subject, found in zip(campaign.job.subjects, models, strict=True)
                    }
                    for batch, models in trial["batches"].items()
                },
            }
            for trial in campaign.trials
        ],
    }
    run.show("\n".join([*(describe(c) for c in comparisons), machine.sentence(noise), *run.notes]))


def describe(c: Comparison) -> str:
    """One sentence on a comparison."""
    between = f" ({c.interval[0]:.3f} to {c.interval[1]:.3f})" if c.interval else ""
    unresolved = ""
    if c.verdict == "unresolved":
        unresolved = f"; more --time-budget may resolve it (margin {100 * c.margin:g} %)"
    verdict = {"same": f"the same as {c.a} within {100 * c.margin:g} %", "unresolved": f"unresolved against {c.a}"}.get(
        c.verdict, f"{c.verdict} than {c.a}"
    )
    return (
        f"{c.b} is {verdict}: {c.ratio:.3f} of its time{between}, batch size {c.batch_size}, "
        f"{c.trials} trials, {c.clock} clock{unresolved}"
    )
