"""``computekit cost own``: what an hour of a bought accelerator costs, and when renting is cheaper."""

from __future__ import annotations

from dataclasses import dataclass

import click

import computekit
from computekit import ComputekitError, options

from .parameters import POSITIVE, InstanceName

HOURS_PER_YEAR = 8766.0
SOURCE = "Cottier et al. 2024, arXiv 2405.21015"


@dataclass(frozen=True)
class Ownership:
    """An accelerator in a server in a cluster.

    ``price_usd`` is that of the accelerator; ``server_factor`` times it is that of its share of the server, and
    ``network_share`` of the whole cluster's price is its network. The value falls by ``depreciation`` orders of
    magnitude a year while it is held for ``years``. While it works it draws ``power_w``.
    """

    price_usd: float
    server_factor: float
    network_share: float
    depreciation: float
    years: float
    power_w: float
    pue: float
    usd_per_kwh: float
    staff_usd_per_hour: float

    @property
    def capital_usd(self) -> float:
        """Price of the accelerator with its share of server and network."""
        return self.price_usd * self.server_factor / (1 - self.network_share)

    @property
    def fixed_usd_per_hour(self) -> float:
        """Lost value and staff, in every hour, used or not."""
        lost = 1 - 10 ** (-self.depreciation * self.years)
        return self.capital_usd * lost / (self.years * HOURS_PER_YEAR) + self.staff_usd_per_hour

    @property
    def energy_usd_per_hour(self) -> float:
        """Electricity of a working hour."""
        return self.power_w / 1e3 * self.pue * self.usd_per_kwh

    def usd_per_used_hour(self, utilization: float) -> float:
        """Cost of a working hour when the device works in this share of all hours."""
        return self.fixed_usd_per_hour / utilization + self.energy_usd_per_hour

    def break_even(self, rent_usd_per_hour: float) -> float | None:
        """The utilisation above which owning is cheaper than this rent; None if it never is."""
        margin = rent_usd_per_hour - self.energy_usd_per_hour
        share = self.fixed_usd_per_hour / margin if margin > 0 else 2.0
        return share if share <= 1 else None


@click.command()
@click.option("--accelerator", required=True, metavar="NAME", help="Accelerator of the hardware catalog.")
@click.option("--price-usd", type=POSITIVE, required=True, help="Price of one accelerator, without its server.")
@click.option(
    "--utilization",
    type=options.Number(above=0, at_most=1),
    default=0.7,
    show_default=True,
    help="Share of all hours in which it works.",
)
@click.option("--years", type=POSITIVE, default=4.0, show_default=True, help="Years until it is sold.")
@click.option(
    "--depreciation",
    type=POSITIVE,
    default=0.14,
    show_default=True,
    help="Orders of magnitude of its value lost in a year; 0.14 is 28%.",
)
@click.option(
    "--server-factor",
    type=options.Number(at_least=1),
    default=1.64,
    show_default=True,
    help="Price of the server over that of its accelerators.",
)
@click.option(
    "--network-share",
    type=options.Number(at_least=0, below=1),
    default=0.19,
    show_default=True,
    help="Share of the network in the price of a cluster; 0 for a single machine.",
)
@click.option(
    "--server-power-factor",
    type=options.Number(at_least=1),
    default=1.8,
    show_default=True,
    help="Power of the server over that of its accelerators.",
)
@click.option(
    "--load",
    type=options.Number(above=0, at_most=1),
    default=0.75,
    show_default=True,
    help="Mean power over design power.",
)
@click.option(
    "--pue",
    type=options.Number(at_least=1),
    default=1.25,
    show_default=True,
    help="Total power of the data centre over that of its computers.",
)
@click.option(
    "--usd-per-kwh",
    type=POSITIVE,
    default=0.0826,
    show_default=True,
    help="Price of electricity; the default is US industrial, 2025.",
)
@click.option(
    "--staff-usd-per-hour",
    type=options.Number(at_least=0),
    default=0.0,
    show_default=True,
    help="Staff and space for one accelerator, in USD per hour.",
)
@click.option(
    "--instance", "instances", multiple=True, type=InstanceName(), help="Instance to compare with; repeatable."
)
@options.step
def own(
    run: computekit.StepRun,
    accelerator: str,
    price_usd: float,
    utilization: float,
    years: float,
    depreciation: float,
    server_factor: float,
    network_share: float,
    server_power_factor: float,
    load: float,
    pue: float,
    usd_per_kwh: float,
    staff_usd_per_hour: float,
    instances: tuple[str, ...],
) -> None:
    """Work out what an hour of a bought accelerator costs, with its share of server, network and electricity, and from
    which utilisation on it is cheaper than renting. The defaults are those of Cottier et al. (2024) for clusters that
    train large models; give your own.

    \b
    Example:
      computekit cost own --accelerator H100-SXM5-80GB --price-usd 30000 --instance p5.48xlarge
      computekit cost own --accelerator RTX-4090 --price-usd 1800 --network-share 0 --pue 1 --usd-per-kwh 0.3
    """
    from computekit import catalog
    from computekit.records import Quantity

    from . import rates

    hardware = catalog.find_hardware(accelerator)
    if hardware.tdp_w is None:
        raise ComputekitError(f"the maker publishes no power for {hardware.name}, so its electricity is unknown")
    owned = Ownership(
        price_usd, server_factor, network_share, depreciation, years, hardware.tdp_w * server_power_factor * load, pue,
        usd_per_kwh, staff_usd_per_hour,
    )  # fmt: skip
    usd = owned.usd_per_used_hour(utilization)
    row = run.row("own")
    row.quantities["cost_usd_per_hour"] = Quantity(value=usd, unit="USD", method=f"{SOURCE}; used {utilization:.0%}")
    row.quantities["capital_usd"] = Quantity(value=owned.capital_usd, unit="USD")
    row.quantities["energy_share"] = Quantity(value=owned.energy_usd_per_hour / usd, unit="1")
    for rate in (rates.of_instance(name, spot=False) for name in instances):
        row = run.row(rate.name)
        row.quantities["cost_usd_per_hour"] = Quantity(
            value=rate.usd_per_hour, unit="USD", how="catalog", method=rate.about
        )
        share = owned.break_even(rate.usd_per_hour)
        never = "renting is cheaper at any utilisation"
        row.quantities["break_even_utilization"] = (
            Quantity(value=share, unit="1", method="owning is cheaper when used more")
            if share is not None
            else Quantity(value=None, unit="1", reason=never)
        )
        if rate.accelerator != hardware.name:
            run.note(
                f"{rate.name} has {rate.accelerator or 'no accelerator'}, not {hardware.name}: hours differ in worth."
            )
