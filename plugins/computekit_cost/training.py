"""The price of a training: of a run by its wall time, of an estimate by its device-hours."""

from __future__ import annotations

from dataclasses import replace

from computekit.records import Device, Quantity, Record, Row

from . import formulas
from .charges import Charged, Subject, carbon, energy_by_power, positive, through
from .rates import Rate, accelerator

_UNIT = "USD per run"


def was_run(record: Record) -> bool:
    """Whether a record is that of a step that trained a model."""
    trained = record.lineage and record.lineage[-1].train_flops
    return bool(record.output and record.rows and trained and isinstance(record.timing.get("duration_s"), float))


def run(subject: Subject, _row: Row, rate: Rate) -> Charged:
    """USD, Wh and kg CO2e of one run on one device; earlier steps of the model have records of their own."""
    record = subject.record
    if subject.terms.utilization is not None:
        return _by_flops(subject, subject.terms.utilization, rate)
    seconds = float(record.timing["duration_s"])
    hours = Quantity(value=seconds / formulas.SECONDS_PER_HOUR, unit="h", how="measured")
    return _charge(subject, hours, rate, f"wall time of this {record.step} run alone ({seconds:.3g} s)")


def _by_flops(subject: Subject, utilization: float, rate: Rate) -> Charged:
    """The same run on a measured device, or on the accelerator of ``rate``, by its FLOPs and an assumed utilisation."""
    flops, dtype = subject.record.lineage[-1].train_flops or 0.0, subject.terms.dtype
    hardware = subject.terms.measured or accelerator(rate.accelerator)
    peak = hardware.peak_flops.get(dtype) if hardware else None
    if hardware is None or peak is None:
        reason = f"there is no {dtype} peak for {hardware.name if hardware else rate.name}"
        unknown = Quantity(value=None, unit="USD", reason=reason)
        return Charged(None, _UNIT, {"training_cost_usd": unknown}, subject.device)
    hours = Quantity(value=formulas.device_hours(flops, peak, utilization), unit="h")
    kind = "measured" if subject.terms.measured else "not verified" if dtype in hardware.unverified else "dense"
    speed = f"{utilization:.0%} of {peak / 1e12:.4g} {dtype} TFLOP/s ({kind}) of {hardware.name}"
    what = f"{flops:.3g} FLOP of this {subject.record.step} run alone at {speed}"
    device = Device(kind="cpu" if hardware.kind == "cpu" else "estimated", name=hardware.name)
    return _charge(replace(subject, device=device), hours, rate, what)


def estimate(subject: Subject, row: Row, rate: Rate) -> Charged:
    """USD, Wh and kg CO2e of an estimated training, all devices together."""
    hours = positive(subject, row, "gpu_hours")
    if hours is None:
        reason = f"no gpu_hours: {row.quantities['gpu_hours'].reason}"
        return Charged(
            None, _UNIT, {"training_cost_usd": Quantity(value=None, unit="USD", reason=reason)}, subject.device
        )
    return _charge(subject, hours, rate, "estimated device-hours")


def _charge(subject: Subject, hours: Quantity, rate: Rate, what: str) -> Charged:
    cost = through(hours, lambda time: time * rate.usd_per_hour, "USD", f"{what}; {rate.name}: {rate.about}")
    energy = energy_by_power(subject, hours, formulas.energy_wh, what)
    quantities = {
        "training_cost_usd": cost,
        "training_energy_wh": energy,
        "training_carbon_kg": carbon(subject, energy),
    }
    notes = []
    if rate.spot:
        notes.append("Spot machines are taken away; what that costs a training is in computekit cost schedule.")
    return Charged(float(cost.value or 0), _UNIT, quantities, subject.device, notes)
