"""The price of a million inferences, or of a million generated tokens."""

from __future__ import annotations

from computekit.records import Quantity, Row

from . import formulas
from .charges import Charged, Subject, carbon, energy_by_power, positive, through
from .rates import Rate

SPEEDS = {"tokens_per_s": "_tokens", "output_tokens_per_s": "_tokens", "throughput_per_s": "",
          "offline_throughput_per_s": ""}  # fmt: skip
"""Quantities that tell a speed, and what they count: generated tokens of all sequences, or samples."""


def charge(subject: Subject, row: Row, rate: Rate) -> Charged:
    """USD, Wh and kg CO2e per million samples or generated tokens, at the speed of the first of `SPEEDS` in ``row``.

    The machine works at full load; an estimate is charged for as many devices as its tensor parallelism takes.
    """
    key = next(key for key in SPEEDS if key in row.quantities)
    devices, what = int(subject.record.options.get("tp") or 1), SPEEDS[key]
    names = [f"{part}_million{what}" for part in ("cost_usd_per", "energy_wh_per", "carbon_kg_per")]
    unit = f"USD per million{what.replace('_', ' ')}"
    speed = positive(subject, row, key)
    if speed is None:
        reason = f"no {key}: {row.quantities[key].reason}"
        units = ("USD", "Wh", "kg")
        unknown = {n: Quantity(value=None, unit=u, reason=reason) for n, u in zip(names, units, strict=True)}
        return Charged(None, unit, unknown, subject.device)
    several = f" x {devices} devices" if devices > 1 else ""
    cost = through(
        speed,
        lambda per_s: formulas.usd_per_million(rate.usd_per_hour * devices, per_s),
        "USD",
        f"price{several} / {key} at full load; {rate.name}: {rate.about}",
    )
    energy = _counted(subject, row) if key == "throughput_per_s" else None
    energy = energy or energy_by_power(
        subject,
        speed,
        lambda watts, per_s: formulas.wh_per_million(watts * devices, per_s),
        f"power{several} / {key}",
    )
    found = dict(zip(names, (cost, energy, carbon(subject, energy)), strict=True))
    return Charged(float(cost.value or 0), unit, found, subject.device)


def _counted(subject: Subject, row: Row) -> Quantity | None:
    """Energy per million from the counter that the benchmark read; None if there was none or a power was given."""
    counted = row.quantities.get("energy_j")
    if subject.terms.device_power_w is not None or counted is None or not isinstance(counted.value, (int, float)):
        return None
    about = f", {counted.method}" if counted.method else ""
    return through(
        counted,
        lambda joules: joules * formulas.MILLION / formulas.JOULES_PER_WH * subject.terms.pue,
        "Wh",
        f"energy counter of the measured device{about}{subject.facility}",
    )
