"""``computekit cost capacity``: how many machines to reserve for a demand that goes up and down."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

import computekit
from computekit import ComputekitError, FileProblem, options

from .parameters import POSITIVE, InstanceName


@dataclass(frozen=True)
class Policy:
    """Reserve so many machines; what the demand has beyond them is bought on demand."""

    name: str
    reserved: int
    usd_per_hour: float


def reserve_quantile(reserved_price: float, on_demand_price: float) -> float:
    """Quantile of the demand up to which reserving pays: 1 - r / p.

    One more reserved machine costs r in each hour and saves p in the hours in which the demand exceeds what is
    reserved already, so it pays while P(demand > reserved) > r / p (the newsvendor problem, Arrow et al. 1951).
    """
    return max(0.0, 1 - reserved_price / on_demand_price)


def best_reservation(demand: Sequence[float], reserved_price: float, on_demand_price: float) -> int:
    """Machines to reserve: as long as one more is used in more than r / p of all hours."""
    needed = [math.ceil(value) for value in demand]
    reserved = 0
    while sum(value > reserved for value in needed) / len(needed) > reserved_price / on_demand_price:
        reserved += 1
    return reserved


def hourly_cost(demand: Sequence[float], reserved: int, reserved_price: float, on_demand_price: float) -> float:
    """Mean USD per hour; a machine is used whole or not at all."""
    burst = sum(max(0, math.ceil(value) - reserved) for value in demand) / len(demand)
    return reserved * reserved_price + burst * on_demand_price


def policies(demand: Sequence[float], reserved_price: float, on_demand_price: float) -> list[Policy]:
    """The best reservation and the usual rules of thumb."""
    mean, peak = sum(demand) / len(demand), max(demand)
    counts = {
        "best": best_reservation(demand, reserved_price, on_demand_price),
        "all on demand": 0,
        "reserve the mean": round(mean),
        "reserve 80% of the mean": round(0.8 * mean),
        "reserve 80% of the peak": round(0.8 * peak),
        "reserve the peak": math.ceil(peak),
    }
    return [
        Policy(name, count, hourly_cost(demand, count, reserved_price, on_demand_price))
        for name, count in counts.items()
    ]


def read_demand(path: Path) -> list[float]:
    """One number per line (or per comma): machines needed in each hour. A first line of text is a heading.

    Raises:
        FileProblem: a line is no number, or there is no demand at all.
    """
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
    except UnicodeDecodeError:
        raise FileProblem(path, "is not a text file", "give one number per line") from None
    demand = []
    for number, line in enumerate(lines, 1):
        for cell in line.rstrip(",").split(","):
            try:
                value = float(cell)
            except ValueError:
                if number == 1:
                    continue
                raise FileProblem(path, f"line {number} holds {cell.strip()!r}, which is not a number") from None
            if not 0 <= value < math.inf:
                raise FileProblem(path, f"line {number} holds {cell.strip()}, which is no number of machines")
            demand.append(value)
    if not demand or max(demand) == 0:
        raise FileProblem(path, "holds no demand", "give one number per line, the machines needed in each hour")
    return demand


@click.command()
@click.argument("demand", type=options.InputPath("demand"))
@click.option("--instance", type=InstanceName(), help="Instance with a reserved price in the catalog.")
@click.option(
    "--term", type=click.Choice(["1y", "3y"]), default="1y", show_default=True, help="Length of the commitment."
)
@click.option("--on-demand-usd-per-hour", type=POSITIVE, help="Price without a commitment, instead of the catalog's.")
@click.option("--reserved-usd-per-hour", type=POSITIVE, help="Price with a commitment, instead of the catalog's.")
@options.step
def capacity(
    run: computekit.StepRun,
    demand: Path,
    instance: str | None,
    term: str,
    on_demand_usd_per_hour: float | None,
    reserved_usd_per_hour: float | None,
) -> None:
    """Find how many machines to reserve for a demand that goes up and down, and what the usual rules of thumb cost
    instead. DEMAND is a text file with the machines needed in each hour, one number per line.

    \b
    Example:
      computekit cost capacity demand.csv --instance gcp/chip-hour-H100-SXM5-80GB/us-central1 --term 3y
      computekit cost capacity demand.csv --on-demand-usd-per-hour 4.1 --reserved-usd-per-hour 2.4
    """
    from computekit.records import Quantity

    hours = read_demand(run.input(demand))
    on_demand, reserved, source = _prices(instance, term, on_demand_usd_per_hour, reserved_usd_per_hour)
    if reserved >= on_demand:
        raise ComputekitError(f"reserving at {reserved:g} USD/h is no cheaper than {on_demand:g} USD/h on demand")
    found = policies(hours, reserved, on_demand)
    best = found[0]
    for policy in found:
        row = run.row(policy.name)
        row.quantities["reserved_machines"] = Quantity(value=policy.reserved, unit="1")
        row.quantities["cost_usd_per_hour"] = Quantity(value=policy.usd_per_hour, unit="USD", method=source)
        row.quantities["above_best"] = Quantity(value=policy.usd_per_hour / best.usd_per_hour - 1, unit="1")
    quantile = reserve_quantile(reserved, on_demand)
    run.details["demand"] = {"hours": len(hours), "mean": sum(hours) / len(hours), "peak": max(hours)}
    run.details["reserve_up_to_quantile"] = quantile
    run.note(
        f"Reserving pays up to the {100 * quantile:.0f}th percentile of the demand: 1 - {reserved:g} / {on_demand:g}."
    )


def _prices(
    instance: str | None, term: str, on_demand: float | None, reserved: float | None
) -> tuple[float, float, str]:
    """(on demand, reserved, source), each from the options, else from the catalog."""
    from computekit import catalog

    source = "given prices"
    if instance is not None:
        price = catalog.find_instance(instance)
        on_demand = on_demand or price.on_demand_usd_per_hour
        reserved = reserved or (price.reserved_1y_usd_per_hour if term == "1y" else price.reserved_3y_usd_per_hour)
        source = f"{price.name} on {price.snapshot_date}; {price.source}"
    if on_demand is None or reserved is None:
        missing = "--on-demand-usd-per-hour" if on_demand is None else "--reserved-usd-per-hour"
        where = f"{instance} has none in the catalog" if instance else "or an --instance of the catalog that has one"
        raise click.UsageError(f"say {missing} ({where})")
    return on_demand, reserved, source
