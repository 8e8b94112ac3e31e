"""Carbon intensity of electricity, by country and by cloud region."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import UnknownName
from .tables import read


@dataclass(frozen=True)
class CarbonIntensity:
    """Grams of CO2 equivalent per kWh of electricity in one place (location-based, a yearly mean).

    ``name`` is an ISO 3166 code of three letters or ``gcp/REGION``; ``year`` is None where the source states none.
    """

    name: str
    place: str
    g_per_kwh: float
    year: int | None
    source: str


def carbon_intensities() -> list[CarbonIntensity]:
    """The rows of data/carbon_intensity.csv."""
    return [
        CarbonIntensity(
            cells["name"],
            cells["place"],
            float(cells["g_co2e_per_kwh"]),
            int(cells["year"]) if cells["year"] else None,
            cells["source"],
        )
        for cells in read("carbon_intensity.csv")
    ]


def find_carbon_intensity(name: str) -> CarbonIntensity:
    """The intensity of ``name``: an ISO code ("FRA"), a place ("France") or a region ("gcp/us-central1").

    Raises UnknownName, with the nearest names, if nothing is called so.
    """
    rows = carbon_intensities()
    known = {called.lower(): row for row in rows for called in (row.place, row.name)}
    if name.strip().lower() in known:
        return known[name.strip().lower()]
    raise UnknownName("place", name, {called for row in rows for called in (row.name, row.place)})
