"""``benchmark models --numerics`` and ``--roofline``: a look inside each model, after it was timed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from computekit import ComputekitError, Hardware, StepRun, catalog, files

from . import device, jobs, numerics, roofline_chart
from .jobs import Job
from .roofline_chart import Roof

TIMEOUT_S = 900.0


def show_numerics(run: StepRun, job: Job, batch: int) -> None:
    """Error, overflow and underflow of each model in bf16, fp16 and fp8, by layer."""
    found = {}
    for subject in job.subjects:
        ask = job.but(task="numerics", subjects=(subject,), more={"batch": batch})
        report = jobs.run(ask, TIMEOUT_S)
        found[subject.label] = report
        run.show(numerics.describe(subject.label, report))
    run.details["numerics"] = found


def show_roofline(run: StepRun, job: Job, batch: int, record: str | None, folder: Path) -> None:
    """A table per model, and ``LABEL.roofline.svg`` in ``folder``; ``record`` is a device record (default: measure)."""
    measured = catalog.find_hardware(record) if record is not None else _measure(run, job)
    about = run.record().device
    assert about is not None
    found: dict[str, Any] = {}
    for subject in job.subjects:
        report = jobs.run(job.but(task="roofline", subjects=(subject,), more={"batch": batch}), TIMEOUT_S)
        dtype = report["dtype"]
        roofs = [Roof.of(measured, dtype, f"measured, {dtype}"), _sheet(about.name, dtype)]
        drawn = [roof for roof in roofs if roof is not None]
        if not drawn:
            raise ComputekitError(f"no peak rate of {about.name} for {dtype} is known, so there is no roof")
        found[subject.label] = report
        run.show(f"{subject.label}, batch size {batch}\n{roofline_chart.table(report, drawn[0])}")
        target = folder / f"{subject.label.replace('/', '_')}.roofline.svg"
        files.write_text(target, roofline_chart.svg(subject.label, report, drawn))
        run.say(f"wrote {target}")
    run.details["measured"]["roofline"] = found


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
