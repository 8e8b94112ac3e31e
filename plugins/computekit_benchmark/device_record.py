"""``computekit benchmark device``: fills the record, and places the device on the ladder of units."""

from __future__ import annotations

from typing import Any

from computekit import ComputekitError, StepRun, catalog, records, statistics

from . import device, jobs, machine
from .jobs import Job
from .rows import significant

TIMEOUT_S = 600.0
_UNITS = ("KFLOP/s", "MFLOP/s", "GFLOP/s", "TFLOP/s", "PFLOP/s", "EFLOP/s")
_EXAMPLES = {
    "KFLOP/s": "a person with a desk calculator is far below this",
    "MFLOP/s": "a Cray-1 of 1976: 160 MFLOP/s",
    "GFLOP/s": "one core of a laptop: tens of GFLOP/s",
    "TFLOP/s": "a graphics card: tens of TFLOP/s; an H100 in bf16: 989 TFLOP/s",
    "PFLOP/s": "a server of eight H100: 7.9 PFLOP/s in bf16",
    "EFLOP/s": "the largest clusters",
}


def measure_device(run: StepRun) -> bool:
    """Fill ``run`` with one row: the device's measured rates. False on the ranks of torchrun that keep no record."""
    watch = machine.Watch()
    reduced = device.all_reduce(run.device) if device.world_size() > 1 else None
    if device.world_size() > 1 and reduced is None:
        return False
    run.say(f"measuring {run.device}; this takes about half a minute")
    job = Job("device", (), str(run.device), run.threads, run.seed)
    found = jobs.run(job, TIMEOUT_S)
    named = run.record().device
    assert named is not None
    row = run.row(named.name)
    for kind, result in found["matmul"].items():
        key = f"peak_{kind}_flops"
        if "samples" in result:
            _put_peak(row, key, result["samples"], result["n"])
        else:
            row.quantities[key] = records.Quantity(value=None, unit="FLOP/s", how="measured", reason=result["reason"])
    _put(row, "copy_bandwidth_bytes_s", "B/s", found["copy_bytes_s"], "bytes read plus written by a copy in memory")
    _put(row, "launch_latency_s", "s", found["launch_s"], "adding two numbers, waited for")
    if reduced is not None:
        _put(row, "allreduce_bytes_s", "B/s", reduced[0], f"bus bandwidth, {device.world_size()} processes")
    else:
        reason = "one process alone; start it with torchrun"
        row.quantities["allreduce_bytes_s"] = records.Quantity(value=None, unit="B/s", how="measured", reason=reason)
    if named.memory_bytes is not None:
        row.quantities["memory_bytes"] = records.Quantity(
            value=named.memory_bytes, unit="B", method="the system says so"
        )
    noise = watch.report()
    run.details["measured"] = {"machine": noise}
    run.show("\n".join([*_ladder(row), *_against_datasheet(row), machine.sentence(noise)]))
    return True


def _put_peak(row: records.Row, key: str, samples: list[float], n: int) -> None:
    """The fastest product: whatever disturbs one makes it slower, never faster than the device can be."""
    row.quantities[key] = records.Quantity(
        value=significant(max(samples)),
        unit="FLOP/s",
        how="measured",
        method=f"fastest of {len(samples)} products of {n} x {n} matrices, 2 n^3 FLOP each",
        samples=[significant(sample) for sample in samples],
    )


def _put(row: records.Row, key: str, unit: str, samples: list[float], what: str) -> None:
    estimate = statistics.quantile_interval(samples)
    about: dict[str, Any] = {**estimate.about, "method": f"{what}; {estimate.method}"}
    row.quantities[key] = records.Quantity(
        value=estimate.value, unit=unit, how="measured", samples=[significant(s) for s in samples], **about
    )


def _peaks(row: records.Row) -> dict[str, float]:
    peaks = {}
    for key, quantity in row.quantities.items():
        if key.startswith("peak_") and isinstance(quantity.value, float):
            peaks[key.removeprefix("peak_").removesuffix("_flops")] = quantity.value
    return peaks


def _ladder(row: records.Row) -> list[str]:
    """One line per unit from KFLOP/s to EFLOP/s, with this device's rates on their rungs."""
    lines = []
    for power, unit in enumerate(_UNITS, start=1):
        here = [
            f"{kind} {rate / 1000**power:.3g}" for kind, rate in _peaks(row).items() if 1 <= rate / 1000**power < 1000
        ]
        lines.append(f"{unit}  {'<- ' + ', '.join(here) if here else '(' + _EXAMPLES[unit] + ')'}")
    return lines


def _against_datasheet(row: records.Row) -> list[str]:
    """The share of the catalog's peaks that was reached, if the catalog knows the device."""
    try:
        sheet = catalog.find_hardware(row.label)
    except ComputekitError:
        return [f"{row.label} is not in the hardware catalog, so there is no datasheet to compare with"]
    known = {kind: rate / sheet.peak_flops[kind] for kind, rate in _peaks(row).items() if kind in sheet.peak_flops}
    shares = [f"{kind} {100 * share:.0f} %" for kind, share in known.items()]
    return [f"share of the datasheet's peak ({sheet.name}): {', '.join(shares) or 'no data type in common'}"]
