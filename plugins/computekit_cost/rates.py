"""What an hour costs: an instance of the catalog or a given price, and which of them fits where it was measured."""

from __future__ import annotations

from dataclasses import dataclass

from computekit import ComputekitError, Hardware, Price, catalog
from computekit.records import Device


class NoSpotPrice(ComputekitError):
    """The catalog knows no spot price for an instance."""

    def __init__(self, instance: str) -> None:
        super().__init__(instance)
        self.instance = instance

    def __str__(self) -> str:
        return f"{self.instance} has no spot price in the catalog; leave out --spot, or give --price-usd-per-hour"


@dataclass(frozen=True)
class Rate:
    """Price of one device for one hour: an instance's price divided by its accelerators.

    ``accelerator`` is a name of the hardware catalog, None for a machine without one. ``own`` is the machine of the
    measurement itself, whose price the user gave.
    """

    name: str
    usd_per_hour: float
    about: str
    accelerator: str | None = None
    stale: bool = False
    own: bool = False
    spot: bool = False
    doubts: tuple[str, ...] = ()


def given(usd_per_hour: float) -> Rate:
    """The price that the user named for the machine of the measurement."""
    return Rate("the measured machine", usd_per_hour, f"{usd_per_hour:g} USD/h, given", own=True)


def of_instance(name: str, spot: bool) -> Rate:
    """The on-demand (or spot) rate of an instance.

    Raises:
        UnknownName, AmbiguousName: see `catalog.find_instance`.
        NoSpotPrice: ``spot`` is asked for and unknown.
    """
    price = catalog.find_instance(name)
    hourly = price.spot_usd_per_hour if spot else price.on_demand_usd_per_hour
    if hourly is None:
        raise NoSpotPrice(price.name)
    share = max(1, price.accelerator_count)
    return Rate(
        name=price.name,
        usd_per_hour=hourly / share,
        about=_about(price, hourly, "spot" if spot else "on demand"),
        accelerator=price.accelerator,
        stale=catalog.is_stale(price),
        spot=spot,
        doubts=tuple(catalog.doubts(price)) if spot else (),
    )


def _about(price: Price, hourly: float, kind: str) -> str:
    per_device = f"; 1 of {price.accelerator_count} accelerators" if price.accelerator_count > 1 else ""
    return f"{hourly:g} USD/h {kind} on {price.snapshot_date}{per_device}; {price.source}"


def fits(rate: Rate, device: Device | None) -> bool:
    """Whether the rate is for the very kind of device that was measured.

    A processor never fits an instance: its name does not tell which part of which machine a virtual one is.
    """
    if rate.own:
        return True
    if device is None or device.kind == "cpu" or rate.accelerator is None:
        return False
    try:
        return catalog.find_hardware(device.name).name == rate.accelerator
    except ComputekitError:
        return False


def accelerator(name: str | None) -> Hardware | None:
    """The accelerator called ``name``; None where there is none, or the hardware catalog does not know it."""
    if name is None:
        return None
    try:
        return catalog.find_hardware(name)
    except ComputekitError:
        return None
