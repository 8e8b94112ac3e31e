"""From records to prices: which rows can be priced, and at which of the rates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from computekit import FileProblem
from computekit.records import Device, Record, Row

from . import inference, training
from .charges import Charged, Subject, Terms
from .rates import Rate, fits


@dataclass(frozen=True)
class Offer:
    """The cost of one row at one rate."""

    rate: Rate
    usd: float


@dataclass(frozen=True)
class Priced:
    """A row with its prices; ``offers`` are all rates, the fitting and cheapest one first."""

    row: Row
    unit: str
    offers: list[Offer]
    notes: list[str]


def price(path: str, record: Record, terms: Terms) -> list[Priced]:
    """Price every row of ``record`` that tells a speed or a training time, else the training run that it is about.

    Raises:
        FileProblem: there is nothing to price in it, or a figure cannot be true.
    """
    subject = Subject(path, record, _device(record), terms)
    priced = []
    for row in record.rows:
        if "step_time_s" in row.quantities and "gpu_hours" not in row.quantities:
            raise FileProblem(path, "estimates one step of a training", "say --tokens or --samples when estimating")
        kind = next((kind for key, kind in _BY_QUANTITY.items() if key in row.quantities), None)
        if kind is not None:
            priced.append(_at_best_rate(subject, row, kind))
    if not priced and training.was_run(record):
        priced.append(_at_best_rate(subject, record.rows[0], training.run))
    if not priced:
        raise FileProblem(
            path,
            f"is a record of {record.step} with nothing to price: it tells neither a throughput nor a training time",
            "give records of computekit benchmark, train, prune, distill, estimator train or estimator infer",
        )
    return priced


_Charge = Callable[[Subject, Row, Rate], Charged]

_BY_QUANTITY: dict[str, _Charge] = {
    "gpu_hours": training.estimate,
    **dict.fromkeys(inference.SPEEDS, inference.charge),
}
"""What a row is charged for, by the first of these quantities that it has."""


def _at_best_rate(subject: Subject, row: Row, charge: _Charge) -> Priced:
    """The charge at the rate for the device whose speed is known; at the cheapest one where no rate is for it."""
    charges = [(rate, charge(subject, row, rate)) for rate in subject.terms.rates]
    known = [(rate, charged) for rate, charged in charges if charged.usd is not None]
    known.sort(key=lambda pair: (not fits(pair[0], pair[1].device), pair[1].usd, pair[0].name))
    rate, charged = known[0] if known else charges[0]
    sha256 = row.sha256 or (subject.record.output.sha256 if subject.record.output else None)
    priced = Row(label=row.label, sha256=sha256, quantities=charged.quantities)
    offers = [Offer(rate, charged.usd) for rate, charged in known if charged.usd is not None]
    return Priced(priced, charged.unit, offers, [*charged.notes, *_notes(charged.device, rate)] if known else [])


def _device(record: Record) -> Device | None:
    """The device that a record is about: where it ran, or what it was estimated for."""
    named = record.options.get("device_name")
    return Device(kind="estimated", name=named) if isinstance(named, str) else record.device


def _notes(device: Device | None, rate: Rate) -> list[str]:
    """What a reader must know: most of all, that a speed is that of another machine than is paid for."""
    if fits(rate, device):
        return []
    if device is None:
        return [f"The record names no device, so the speed may not be that of {rate.name}, whose price is used."]
    threads = f" with {device.threads} thread{'s' if device.threads > 1 else ''}" if device.threads else ""
    verb = "Estimated for" if device.kind == "estimated" else "Measured on"
    return [
        f"{verb} {device.name}{threads}, priced as {rate.name}: that machine may be faster or slower, so "
        f"the cost holds only as far as their speeds agree."
    ]
