"""Carbon intensity by country and cloud region."""

from __future__ import annotations

import pytest

from computekit import catalog
from computekit.errors import UnknownName


@pytest.mark.parametrize(
    ("name", "g_per_kwh"), [("FRA", 56.04), ("france", 56.04), ("gcp/us-central1", 430.0), ("USA", 369.5)]
)
def test_places_are_found_by_code_name_and_region(name: str, g_per_kwh: float) -> None:
    assert catalog.find_carbon_intensity(name).g_per_kwh == pytest.approx(g_per_kwh, rel=1e-3)


def test_unknown_place_is_refused_with_the_nearest() -> None:
    with pytest.raises(UnknownName, match="did you mean Germany"):
        catalog.find_carbon_intensity("Germny")


def test_rows_are_plausible_and_sourced() -> None:
    rows = catalog.carbon_intensities()
    assert len({row.name for row in rows}) == len({row.place for row in rows}) == len(rows) > 200
    assert all(0 < row.g_per_kwh < 1500 and row.source for row in rows)
