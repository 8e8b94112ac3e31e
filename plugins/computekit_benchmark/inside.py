"""``benchmark models --numerics`` and ``--roofline``: a look inside each model, after it was timed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from computekit import ComputekitError, Hardware, StepRun, catalog, files

from . import device, jobs, numerics, roofline_chart
from .jobs import Job, JobFailed
from .roofline_chart import Roof

TIMEOUT_S = 900.0


def show_numerics(run: StepRun, job: Job, batch: int) -> None:
    """Error, overflow and underflow of each model in bf16, fp16 and fp8, by layer."""
    found = run.details["numerics"] = {}
    for subject in job.subjects:
        ask = job.but(task="numerics", subjects=(subject,), more={"batch": batch})
        try:
            report = jobs.run(ask, TIMEOUT_S)
        except JobFailed as failure:
            _give_up(run, "numerics", subject.label, failure.problem)
            continue
        found[subject.label] = report
        run.show(numerics.describe(subject.label, report))


def show_roofline(run: StepRun, job: Job, batch: int, ceilings: Hardware | None, folder: Path) -> None:
    """A table per model, and ``LABEL.roofline.svg`` in ``folder``, under ``ceilings`` (default: measured now)."""
    try:
        measured = ceilings or _measure(run, job)
    except JobFailed as failure:
        _give_up(run, "roofline", "the models", failure.problem)
        return
    about = run.record().device
    assert about is not None
    found: dict[str, Any] = {}
    run.details["measured"]["roofline"] = found
    for subject in job.subjects:
        try:
            report = jobs.run(job.but(task="roofline", subjects=(subject,), more={"batch": batch}), TIMEOUT_S)
        except JobFailed as failure:
            _give_up(run, "roofline", subject.label, failure.problem)
            continue
        dtype = report["dtype"]
        roofs = [Roof.of(measured, dtype, f"measured, {dtype}"), _sheet(about.name, dtype)]
        drawn = [roof for roof in roofs if roof is not None]
        if not drawn:
            _give_up(run, "roofline", subject.label, f"no peak rate of {about.name} for {dtype} is known")
            continue
        found[subject.label] = report
        run.show(f"{subject.label}, batch size {batch}\n{roofline_chart.table(report, drawn[0])}")
        target = folder / f"{subject.label.replace('/', '_')}.roofline.svg"
        files.write_text(target, roofline_chart.svg(subject.label, report, drawn))
        run.say(f"wrote {target}")


def _give_up(run: StepRun, what: str, label: str, reason: str) -> None:
    """Leave ``what`` of one model out and say why; its times and the other models stand."""
    run.note(f"no {what} of {label}: {reason}")
    run.show(run.notes[-1])


def _measure(run: StepRun, job: Job) -> Hardware:
    run.say("measuring the device for the roof; --ceilings device.json would reuse a record")
    found = jobs.run(job.but(task="device", subjects=(), more={}), TIMEOUT_S)
    return Hardware(
        name="this device",
        kind="cpu",
        peak_flops={kind: max(x["samples"]) for kind, x in found["matmul"].items() if "samples" in x},
        memory_bytes=device.COPY_BYTES["cpu"],
        bandwidth_bytes_s=max(found["copy_bytes_s"]),
        source="measured just now",
    )


def _sheet(name: str, dtype: str) -> Roof | None:
    """The datasheet's ceiling, where the catalog knows the device."""
    try:
        return Roof.of(catalog.find_hardware(name), dtype, f"datasheet, {dtype}")
    except ComputekitError:
        return None
