"""From records to prices: each row of a benchmark, and each training run, gets its cost, energy and carbon."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from computekit import FileProblem
from computekit.catalog import CarbonIntensity
from computekit.records import Quantity, Record, Row

from . import formulas
from .energy import Power, power_of
from .rates import Rate, fits, fitting


@dataclass(frozen=True)
class Terms:
    """What an hour, a watt-hour and a kilogram are charged at."""

    rates: Sequence[Rate]
    pue: float
    intensity: CarbonIntensity | None
    device_power_w: float | None


@dataclass(frozen=True)
class Offer:
    """The cost of one row at one rate."""

    rate: Rate
    usd: float


@dataclass(frozen=True)
class Priced:
    """A row with its prices; ``offers`` are all rates, the fitting and cheapest one first."""

    row: Row
    offers: list[Offer]
    notes: list[str]


def price(path: str, record: Record, terms: Terms) -> list[Priced]:
    """Price every row of ``record`` that has a throughput, else the training run that it is about.

    Raises:
        FileProblem: there is nothing to price in it.
    """
    inference = [row for row in record.rows if "throughput_per_s" in row.quantities]
    if inference:
        return [_price_inference(path, record, row, terms) for row in inference]
    duration = record.timing.get("duration_s")
    trained = record.lineage and record.lineage[-1].train_flops
    if record.output is not None and record.rows and trained and isinstance(duration, float):
        return [_price_training(record, duration, terms)]
    raise FileProblem(
        path,
        f"is a record of {record.step} with nothing to price: neither throughput_per_s nor a training run",
        "give records of computekit benchmark, train, prune or distill",
    )


def _price_inference(path: str, record: Record, row: Row, terms: Terms) -> Priced:
    """USD, Wh and kg CO2e per million inferences."""
    throughput = row.quantities["throughput_per_s"]
    priced = Row(label=row.label, sha256=row.sha256)
    keys = {"cost_usd_per_million": "USD", "energy_wh_per_million": "Wh", "carbon_kg_per_million": "kg"}
    if not isinstance(throughput.value, (int, float)):
        for key, unit in keys.items():
            priced.quantities[key] = Quantity(value=None, unit=unit, reason=f"no throughput: {throughput.reason}")
        return Priced(priced, [], [])
    if throughput.value <= 0:
        raise FileProblem(path, f"says that {row.label} has a throughput of {throughput.value}", "it must be positive")
    speed = float(throughput.value)
    offers = _offers(record, terms, lambda usd_per_hour: formulas.usd_per_million(usd_per_hour, speed))
    best = offers[0].rate
    priced.quantities["cost_usd_per_million"] = _per_inference(
        throughput,
        lambda rate: formulas.usd_per_million(best.usd_per_hour, rate),
        "USD",
        f"price / throughput at full load; {best.name}: {best.about}",
    )
    energy = _energy_per_million(record, row, throughput, terms)
    priced.quantities["energy_wh_per_million"] = energy
    priced.quantities["carbon_kg_per_million"] = _carbon(energy, terms.intensity)
    return Priced(priced, offers, _notes(record, best))


def _per_inference(throughput: Quantity, cost: Callable[[float], float], unit: str, method: str) -> Quantity:
    """``cost`` of the throughput and of both ends of its interval; the slower end is the dearer one."""
    interval = None
    if throughput.interval is not None and throughput.interval[0] > 0:
        low, high = throughput.interval
        interval = (cost(high), cost(low))
    return Quantity(
        value=cost(float(throughput.value or 0)),
        unit=unit,
        how=throughput.how,
        interval=interval,
        confidence=throughput.confidence if interval else None,
        method=method,
    )


def _energy_per_million(record: Record, row: Row, throughput: Quantity, terms: Terms) -> Quantity:
    counted = row.quantities.get("energy_j")
    facility = f"; times a PUE of {terms.pue:g}" if terms.pue != 1 else ""
    if terms.device_power_w is None and counted is not None and isinstance(counted.value, (int, float)):
        joules = float(counted.value) * formulas.MILLION * terms.pue
        return Quantity(
            value=joules / formulas.JOULES_PER_WH,
            unit="Wh",
            how="measured",
            method=f"energy counter of the measured device{f', {counted.method}' if counted.method else ''}{facility}",
        )
    power = power_of(record.device, terms.device_power_w)
    if power.watts is None:
        return Quantity(value=None, unit="Wh", reason=power.reason)
    watts = power.watts * terms.pue
    quantity = _per_inference(
        throughput,
        lambda rate: formulas.wh_per_million(watts, rate),
        "Wh",
        f"power / throughput; {power.about}{facility}",
    )
    return quantity.model_copy(update={"how": power.how})


def _price_training(record: Record, duration_s: float, terms: Terms) -> Priced:
    """USD, Wh and kg CO2e of one training run, by its wall time; earlier steps are in their own records."""
    assert record.output is not None
    hours = duration_s / formulas.SECONDS_PER_HOUR
    offers = _offers(record, terms, lambda usd_per_hour: usd_per_hour * hours)
    best = offers[0].rate
    what = f"wall time of this {record.step} run alone ({duration_s:.3g} s)"
    priced = Row(label=record.rows[0].label, sha256=record.output.sha256)
    priced.quantities["training_cost_usd"] = Quantity(
        value=offers[0].usd, unit="USD", how="measured", method=f"{what}; {best.name}: {best.about}"
    )
    power = power_of(record.device, terms.device_power_w)
    energy = _training_energy(power, hours, terms.pue, what)
    priced.quantities["training_energy_wh"] = energy
    priced.quantities["training_carbon_kg"] = _carbon(energy, terms.intensity)
    return Priced(priced, offers, _notes(record, best))


def _training_energy(power: Power, hours: float, pue: float, what: str) -> Quantity:
    if power.watts is None:
        return Quantity(value=None, unit="Wh", reason=power.reason)
    facility = f"; times a PUE of {pue:g}" if pue != 1 else ""
    value = formulas.energy_wh(power.watts, hours, pue)
    return Quantity(value=value, unit="Wh", how=power.how, method=f"{what}; {power.about}{facility}")


def _carbon(energy: Quantity, intensity: CarbonIntensity | None) -> Quantity:
    if energy.value is None:
        return Quantity(value=None, unit="kg", reason="the energy is unknown")
    if intensity is None:
        return Quantity(value=None, unit="kg", reason="no --carbon-intensity was given")

    def carbon(wh: float) -> float:
        return formulas.carbon_kg(wh, intensity.g_per_kwh)

    where = "given" if intensity.name == "given" else f"{intensity.place}, {intensity.source}"
    year = f" of {intensity.year}" if intensity.year else ""
    about: dict[str, Any] = {}
    if energy.interval is not None:
        about = {"interval": tuple(map(carbon, energy.interval)), "confidence": energy.confidence}
    return Quantity(
        value=carbon(float(energy.value)),
        unit="kg",
        how=energy.how,
        method=f"energy x {intensity.g_per_kwh:g} g/kWh{year}, location-based ({where})",
        **about,
    )


def _offers(record: Record, terms: Terms, cost: Callable[[float], float]) -> list[Offer]:
    """All rates, those for the measured device first, the cheapest of them first."""
    chosen = fitting(terms.rates, record.device)
    offers = [Offer(rate, cost(rate.usd_per_hour)) for rate in terms.rates]
    return sorted(offers, key=lambda offer: (offer.rate not in chosen, offer.usd, offer.rate.name))


def _notes(record: Record, rate: Rate) -> list[str]:
    """What a reader must know: most of all, that a speed was measured on another machine than is paid for."""
    if fits(rate, record.device):
        return []
    if record.device is None:
        return [f"The record names no device, so the speed may not be that of {rate.name}, whose price is used."]
    count = record.device.threads
    threads = f" with {count} thread{'s' if count > 1 else ''}" if count else ""
    return [
        f"Measured on {record.device.name}{threads}, priced as {rate.name}: that machine may be faster or slower, so "
        f"the cost holds only as far as their speeds agree."
    ]
