"""The price catalog: list prices of cloud instances, each with its date and source."""

from __future__ import annotations

import datetime

from .. import host
from ..contracts import Price
from ..errors import AmbiguousName, UnknownName
from .tables import number, read

STALE_AFTER_DAYS = 180
"""A price that was seen longer ago is called stale."""


def shipped() -> list[Price]:
    """The rows of data/prices.csv."""
    return [_row(cells) for cells in read("prices.csv")]


def prices() -> list[Price]:
    """All rows, shipped ones first; of two rows with one name the later one, a plugin's, is kept."""
    return list({row.name: row for row in host.current().prices}.values())


def find_instance(name: str) -> Price:
    """The price of ``instance``, ``provider/instance`` or ``provider/instance/region``, in any case.

    Raises:
        UnknownName: nothing is called so.
        AmbiguousName: it is priced in several regions or by several providers.
    """
    rows = prices()
    wanted = name.strip().lower()
    found = [row for row in rows if wanted in _names(row)]
    if len(found) == 1:
        host.current().takes_part(found[0])
        return found[0]
    if found:
        raise AmbiguousName("instance", name, (row.name for row in found))
    raise UnknownName("instance", name, {row.instance for row in rows})


def is_stale(price: Price, today: datetime.date | None = None) -> bool:
    """Whether the price was seen more than STALE_AFTER_DAYS before ``today`` (the system's date)."""
    seen = datetime.date.fromisoformat(price.snapshot_date)
    return ((today or datetime.date.today()) - seen).days > STALE_AFTER_DAYS


def doubts(price: Price) -> list[str]:
    """What makes a price look wrong, in words; an empty list for most.

    These are traps of real price lists: a spot price that only marks the absence of capacity, one that is no
    discount, and a commitment that is listed as spot.
    """
    spot, on_demand = price.spot_usd_per_hour, price.on_demand_usd_per_hour
    if spot is None:
        return []
    found = []
    if on_demand is not None and abs(spot / on_demand - 0.1) < 0.001:
        found.append(
            "the spot price is exactly a tenth of on demand, which lists often show where there is no capacity"
        )
    if on_demand is not None and spot >= on_demand:
        found.append("the spot price is no lower than on demand")
    if spot in (price.reserved_1y_usd_per_hour, price.reserved_3y_usd_per_hour):
        found.append("the spot price equals that of a commitment")
    return found


def _names(row: Price) -> set[str]:
    return {row.instance.lower(), f"{row.provider}/{row.instance}".lower(), row.name.lower()}


def _row(cells: dict[str, str]) -> Price:
    return Price(
        provider=cells["provider"],
        instance=cells["instance"],
        region=cells["region"],
        on_demand_usd_per_hour=number(cells["on_demand_usd_per_hour"]),
        spot_usd_per_hour=number(cells["spot_usd_per_hour"]),
        snapshot_date=cells["snapshot_date"],
        source=cells["source"],
        accelerator=cells["accelerator"] or None,
        accelerator_count=int(cells["accelerator_count"]),
        vcpus=int(cells["vcpus"]) if cells["vcpus"] else None,
        memory_gib=number(cells["memory_gib"]),
        notes=cells["notes"],
        reserved_1y_usd_per_hour=number(cells["reserved_1y_usd_per_hour"]),
        reserved_3y_usd_per_hour=number(cells["reserved_3y_usd_per_hour"]),
    )
