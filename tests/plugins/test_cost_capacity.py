"""How many machines to reserve, against a search over all numbers and the rules of thumb."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from computekit.cli import main
from computekit.records import load
from computekit_cost.capacity import best_reservation, hourly_cost, policies, reserve_quantile

DIURNAL = [60 + 92 * max(-0.5, math.cos(2 * math.pi * hour / 24)) for hour in range(24 * 7)]


@pytest.mark.parametrize(
    ("reserved", "on_demand", "quantile"),
    [(1.45, 4.10, 0.646), (2.40, 4.10, 0.415), (4.86, 11.06, 0.561), (5.81, 6.98, 0.168), (5.0, 4.0, 0.0)],
)
def test_quantiles_of_real_price_lists(reserved: float, on_demand: float, quantile: float) -> None:
    assert reserve_quantile(reserved, on_demand) == pytest.approx(quantile, abs=0.001)


@given(st.lists(st.floats(0, 40), min_size=1, max_size=60), st.floats(0.05, 0.95))
def test_no_other_number_of_machines_is_cheaper(demand: list[float], ratio: float) -> None:
    best = hourly_cost(demand, best_reservation(demand, ratio, 1.0), ratio, 1.0)
    assert best <= min(hourly_cost(demand, count, ratio, 1.0) for count in range(42)) + 1e-9


def test_rules_of_thumb_on_a_daily_rhythm() -> None:
    found = {policy.name: policy.usd_per_hour for policy in policies(DIURNAL, 2.40, 4.10)}
    assert min(found, key=lambda name: found[name]) == "best"
    assert found["reserve 80% of the peak"] > 1.2 * found["best"]
    assert found["reserve 80% of the mean"] < 1.11 * found["best"]


def capacity(demand: Path, *words: str) -> Result:
    return CliRunner().invoke(main, ["cost", "capacity", str(demand), *words, "-o", str(demand.with_name("plan.json"))])


@pytest.fixture
def demand(tmp_path: Path) -> Path:
    path = tmp_path / "demand.csv"
    path.write_text("machines\n" + "\n".join(f"{value:.2f}" for value in DIURNAL))
    return path


def test_command_takes_prices_from_the_catalog(demand: Path) -> None:
    result = capacity(demand, "--instance", "gcp/chip-hour-H100-SXM5-80GB/us-central1", "--term", "3y")
    assert result.exit_code == 0, result.output
    record = load(demand.with_name("plan.json"))
    assert record.details["reserve_up_to_quantile"] == pytest.approx(1 - 4.86 / 11.06)
    assert record.rows[0].label == "best" and record.rows[0].quantities["above_best"].value == 0
    assert record.details["demand"]["hours"] == len(DIURNAL)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no demand"),
        ("0\n0\n", "holds no demand"),
        ("3\nx\n", "line 2 holds 'x', which is not a number"),
        ("3\n-1\n", "line 2 holds -1, which is no number of machines"),
        ("3\nnan\n", "no number of machines"),
    ],
)
def test_bad_demand_is_refused_by_line(demand: Path, text: str, message: str) -> None:
    demand.write_text(text)
    result = capacity(demand, "--on-demand-usd-per-hour", "4", "--reserved-usd-per-hour", "2")
    assert result.exit_code == 1 and message in result.output


def test_binary_demand_is_refused(demand: Path) -> None:
    demand.write_bytes(b"\xff\xfe\x00\x81")
    result = capacity(demand, "--on-demand-usd-per-hour", "4", "--reserved-usd-per-hour", "2")
    assert result.exit_code == 1 and "is not a text file" in result.output


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ((), 2, "--on-demand-usd-per-hour"),
        (("--instance", "g5.xlarge"), 2, "g5.xlarge has none in the catalog"),
        (("--on-demand-usd-per-hour", "2", "--reserved-usd-per-hour", "3"), 1, "no cheaper"),
    ],
)
def test_prices_that_are_missing_or_senseless(demand: Path, words: tuple[str, ...], code: int, message: str) -> None:
    result = capacity(demand, *words)
    assert result.exit_code == code and message in result.output
