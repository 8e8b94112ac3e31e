"""The price catalog: finding instances, dates, and the traps that other catalogs fall into."""

from __future__ import annotations

import datetime

import pytest

import computekit
from computekit import catalog, host
from computekit.catalog.instances import shipped
from computekit.errors import AmbiguousName, CatalogRowRefused, UnknownName

WITHOUT_HARDWARE = {"Gaudi1"}


@pytest.mark.parametrize("name", ["p4d.24xlarge", "aws/p4d.24xlarge", "aws/p4d.24xlarge/us-east-1", "AWS/P4D.24xlarge"])
def test_instance_is_found_by_each_of_its_names(name: str) -> None:
    price = catalog.find_instance(name)
    assert (price.on_demand_usd_per_hour, price.accelerator, price.accelerator_count) == (
        21.957642,
        "A100-SXM4-40GB",
        8,
    )


def test_cpu_instance_has_a_price_and_no_accelerator() -> None:
    price = catalog.find_instance("c7i.large")
    assert (price.on_demand_usd_per_hour, price.accelerator, price.vcpus) == (0.08925, None, 2)


def test_instance_of_several_regions_needs_one() -> None:
    with pytest.raises(AmbiguousName, match="gcp/a2-highgpu-1g/europe-west4, gcp/a2-highgpu-1g/us-central1"):
        catalog.find_instance("a2-highgpu-1g")
    assert catalog.find_instance("gcp/a2-highgpu-1g/us-central1").spot_usd_per_hour == 1.928


def test_unknown_instance_is_refused_with_the_nearest() -> None:
    with pytest.raises(UnknownName, match=r"p4d\.24xlarge"):
        catalog.find_instance("p4d.24xlrge")


def test_names_are_unique_and_rows_complete() -> None:
    rows = shipped()
    assert len({row.name for row in rows}) == len(rows) > 200
    for row in rows:
        assert row.source and datetime.date.fromisoformat(row.snapshot_date)
        assert (row.accelerator is None) == (row.accelerator_count == 0), row.name


def test_accelerators_are_in_the_hardware_catalog() -> None:
    names = {row.name for row in catalog.hardware()}
    assert {row.accelerator for row in shipped() if row.accelerator} - names == WITHOUT_HARDWARE


def test_spot_is_below_on_demand_and_no_floor_price() -> None:
    """A spot price at 10 % of on demand is the floor that is listed where there is no capacity."""
    for row in shipped():
        if row.spot_usd_per_hour and row.on_demand_usd_per_hour:
            assert 0.15 < row.spot_usd_per_hour / row.on_demand_usd_per_hour < 0.9, row.name


def test_accelerator_instances_are_not_priced_as_bare_hosts() -> None:
    """Some catalogs list the host of a GPU instance without its GPUs (a2-highgpu-1g at 0.74 instead of 3.67)."""
    for row in shipped():
        if row.accelerator and row.accelerator.startswith(("A100", "H100", "H200", "B200")) and row.vcpus:
            assert row.on_demand_usd_per_hour and row.on_demand_usd_per_hour / row.accelerator_count > 2, row.name


def test_commitments_are_cheaper_than_on_demand() -> None:
    for row in shipped():
        if row.reserved_1y_usd_per_hour and row.reserved_3y_usd_per_hour and row.on_demand_usd_per_hour:
            assert row.reserved_3y_usd_per_hour < row.reserved_1y_usd_per_hour < row.on_demand_usd_per_hour


def test_old_prices_are_stale() -> None:
    price = catalog.find_instance("p4d.24xlarge")
    assert not catalog.is_stale(price, datetime.date(2026, 8, 1))
    assert catalog.is_stale(price, datetime.date(2027, 7, 1))


def test_plugin_row_replaces_the_list_price(monkeypatch: pytest.MonkeyPatch) -> None:
    class Plugin:
        @computekit.hookimpl
        def computekit_prices(self) -> list[computekit.Price]:
            return [computekit.Price("aws", "g5.xlarge", "us-east-1", 0.70, None, "2026-11-01", "our contract")]

    monkeypatch.setattr(host, "current", lambda: host.Host.of(("mine", Plugin())))
    assert catalog.find_instance("g5.xlarge").on_demand_usd_per_hour == 0.70


@pytest.mark.parametrize(
    ("usd", "date", "source", "problem"),
    [
        (None, "2026-01-01", "x", "no price"),
        (-1.0, "2026-01-01", "x", "not positive"),
        (1.0, "yesterday", "x", "YYYY-MM-DD"),
        (1.0, "2026-01-01", "", "no source"),
    ],
)
def test_row_that_breaks_a_rule_is_refused(usd: float | None, date: str, source: str, problem: str) -> None:
    with pytest.raises(CatalogRowRefused, match=problem):
        computekit.Price("us", "rack", "here", usd, None, date, source)
