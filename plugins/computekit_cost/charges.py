"""What the charges for inference and training share: the subject, its power, its energy and its carbon."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from computekit import FileProblem, Hardware
from computekit.catalog import CarbonIntensity
from computekit.records import Device, Quantity, Record, Row

from . import formulas
from .energy import Power, power_of
from .rates import Rate


@dataclass(frozen=True)
class Terms:
    """What an hour, a watt-hour and a kilogram are charged at; None is "not given".

    With a ``utilization``, training runs are charged for their FLOPs on the accelerator of each rate, at this share of
    its dense peak in ``dtype``, instead of for their wall time where they ran.
    """

    rates: Sequence[Rate]
    pue: float = 1.0
    intensity: CarbonIntensity | None = None
    device_power_w: float | None = None
    utilization: float | None = None
    dtype: str = "bf16"
    measured: Hardware | None = None


@dataclass(frozen=True)
class Subject:
    """A record, the device that its figures are about, and the terms to charge it at."""

    path: str
    record: Record
    device: Device | None
    terms: Terms

    @functools.cached_property
    def power(self) -> Power:
        """Power of one device."""
        return power_of(self.device, self.terms.device_power_w)

    @property
    def facility(self) -> str:
        """How the method of an energy says its PUE."""
        return f"; times a PUE of {self.terms.pue:g}" if self.terms.pue != 1 else ""


@dataclass(frozen=True)
class Charged:
    """Quantities of one row at one rate; ``usd``, in ``unit``, is what rates are compared by, None if unknown.

    ``device`` is the one whose speed was used.
    """

    usd: float | None
    unit: str
    quantities: dict[str, Quantity]
    device: Device | None
    notes: list[str] = field(default_factory=list)


def positive(subject: Subject, row: Row, key: str) -> Quantity | None:
    """The quantity of ``row`` called ``key`` if its value is known.

    Raises:
        FileProblem: the value is a word, zero or negative.
    """
    quantity = row.quantities[key]
    if quantity.value is None:
        return None
    if isinstance(quantity.value, str) or not quantity.value > 0:
        raise FileProblem(subject.path, f"says that {row.label} has a {key} of {quantity.value}", "it must be positive")
    return quantity


def through(source: Quantity, cost: Callable[[float], float], unit: str, method: str) -> Quantity:
    """``cost`` of a quantity and of both ends of its interval; a falling cost turns the ends around."""
    about: dict[str, Any] = {}
    if source.interval is not None and source.interval[0] > 0:
        ends = sorted(cost(end) for end in source.interval)
        about = {"interval": (ends[0], ends[1]), "confidence": source.confidence}
    return Quantity(value=cost(float(source.value or 0)), unit=unit, how=source.how, method=method, **about)


def energy_by_power(subject: Subject, source: Quantity, wh: Callable[[float, float], float], what: str) -> Quantity:
    """Energy ``wh(watts, value)`` from the power of a device and the value of ``source``; unknown if the power is."""
    power = subject.power
    if power.watts is None:
        return Quantity(value=None, unit="Wh", reason=power.reason)
    watts = power.watts * subject.terms.pue
    found = through(source, lambda value: wh(watts, value), "Wh", f"{what}; {power.about}{subject.facility}")
    return found.model_copy(update={"how": power.how})


def carbon(subject: Subject, energy: Quantity) -> Quantity:
    """Emissions of an energy; unknown if it is, or if no carbon intensity was given."""
    intensity = subject.terms.intensity
    if energy.value is None:
        return Quantity(value=None, unit="kg", reason="the energy is unknown")
    if intensity is None:
        return Quantity(value=None, unit="kg", reason="no --carbon-intensity was given")
    where = "given" if intensity.name == "given" else f"{intensity.place}, {intensity.source}"
    year = f" of {intensity.year}" if intensity.year else ""
    return through(
        energy,
        lambda wh: formulas.carbon_kg(wh, intensity.g_per_kwh),
        "kg",
        f"energy x {intensity.g_per_kwh:g} g/kWh{year}, location-based ({where})",
    )
