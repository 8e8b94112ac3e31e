"""``computekit cost price``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import computekit
from computekit import options
from computekit.contracts import PEAK_DTYPES

from .parameters import POSITIVE, InstanceName

if TYPE_CHECKING:
    from .pricing import Priced


@click.command()
@options.records
@click.option(
    "--instance",
    "instances",
    multiple=True,
    type=InstanceName(),
    help="Instance to price, as INSTANCE, PROVIDER/INSTANCE or PROVIDER/INSTANCE/REGION; repeatable.",
)
@click.option("--spot", is_flag=True, help="Use spot prices instead of on-demand ones.")
@click.option("--price-usd-per-hour", type=POSITIVE, help="Price of the measured machine itself.")
@click.option(
    "--carbon-intensity", metavar="G|PLACE", help="g CO2e per kWh, or a place: FRA, Germany, gcp/us-central1."
)
@click.option(
    "--pue",
    type=options.Number(at_least=1),
    default=1.0,
    show_default=True,
    help="Total power of the data centre over that of its computers; 1 counts the device alone.",
)
@click.option("--device-power-w", type=POSITIVE, help="Power of the measured device, instead of counter or catalog.")
@click.option(
    "--utilization",
    type=options.Number(above=0, at_most=1),
    help="Charge training runs for their FLOPs on each instance's accelerator at this share of its dense peak.",
)
@click.option("--dtype", type=click.Choice(PEAK_DTYPES), default="bf16", show_default=True, help="Type of that peak.")
@click.option(
    "--device-record",
    type=options.InputPath("record"),
    help="Record of computekit benchmark device, whose measured peak --utilization takes instead.",
)
@options.step
def price(
    run: computekit.StepRun,
    records: tuple[Path, ...],
    instances: tuple[str, ...],
    spot: bool,
    price_usd_per_hour: float | None,
    carbon_intensity: str | None,
    pue: float,
    device_power_w: float | None,
    utilization: float | None,
    dtype: str,
    device_record: Path | None,
) -> None:
    """Price what records measured or estimated: inference per million, a training run as a whole.

    The cost carries the interval of the measured throughput. Of several instances, the one with the measured
    accelerator counts; where none has it, the cheapest, with a note that the speed was measured elsewhere. Energy
    comes from a counter that the benchmark read, or is an upper bound from the design power in the catalog, or is
    unknown.

    \b
    Example:
      computekit cost price benchmark.json --instance g5.xlarge --instance g6.xlarge -o cost.json
      computekit cost price benchmark.json --price-usd-per-hour 0.4 --device-power-w 65 --carbon-intensity FRA
      computekit cost price model.pt.record.json --instance aws/c7i.2xlarge
      computekit cost price model.pt.record.json --instance p5.48xlarge --utilization 0.4
    """
    from computekit.catalog.measured import from_record
    from computekit.records import load

    from . import energy, rates
    from .charges import Terms
    from .pricing import price as price_record

    if not instances and price_usd_per_hour is None:
        raise click.UsageError("say what an hour costs: --instance NAME or --price-usd-per-hour X")
    if device_record is not None and utilization is None:
        raise click.UsageError("--device-record needs --utilization: the share of the measured peak that is reached")
    measured = from_record(run.input(device_record)) if device_record else None
    chosen = [rates.of_instance(name, spot) for name in dict.fromkeys(instances)]
    if price_usd_per_hour is not None:
        chosen.append(rates.given(price_usd_per_hour))
    terms = Terms(chosen, pue, energy.intensity(carbon_intensity), device_power_w, utilization, dtype, measured)
    priced = [item for path in records for item in price_record(str(path), load(run.input(path)), terms)]
    for item in priced:
        run.row(item.row.label, item.row.sha256).quantities.update(item.row.quantities)
    for note in dict.fromkeys(note for item in priced for note in item.notes):
        run.note(note)
    for rate in chosen:
        for doubt in rate.doubts:
            run.note(f"{rate.name}: {doubt}.")
    run.details["prices"] = {
        rate.name: {"usd_per_device_hour": rate.usd_per_hour, "about": rate.about} for rate in chosen
    }
    run.details["offers"] = _offers(priced)
    run.show(_table(priced))
    for rate in chosen:
        if rate.stale:
            run.say(f"{rate.name}: the price is old ({rate.about}); look the present one up")


def _offers(priced: list[Priced]) -> list[dict[str, Any]]:
    return [
        {"label": item.row.label, "instance": offer.rate.name, "usd": offer.usd, "unit": item.unit}
        for item in priced
        for offer in item.offers
    ]


def _table(priced: list[Priced]) -> str:
    from tabulate import tabulate

    rows = [
        (item.row.label, offer.rate.name, offer.usd, item.unit, "old price" if offer.rate.stale else "")
        for item in priced
        for offer in item.offers
    ]
    return tabulate(rows, headers=["", "instance", "price", "", ""], tablefmt="plain", floatfmt=".4g")
