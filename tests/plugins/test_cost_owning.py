"""Buying against renting."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from computekit.cli import main
from computekit.records import load
from computekit_cost.owning import HOURS_PER_YEAR, Ownership


def owned(**changes: Any) -> Ownership:
    plain = {
        "price_usd": 30_000, "server_factor": 1.64, "network_share": 0.19, "depreciation": 0.14, "years": 4.0,
        "power_w": 700 * 1.8 * 0.75, "pue": 1.25, "usd_per_kwh": 0.0826, "staff_usd_per_hour": 0.0,
    }  # fmt: skip
    return Ownership(**{**plain, **changes})


def test_value_falls_by_the_published_rate() -> None:
    """0.14 orders of magnitude a year: at first it loses 0.14 ln 10 = 32 % a year, over the first year 28 %."""
    start = owned(server_factor=1, network_share=0, years=1e-4).fixed_usd_per_hour * HOURS_PER_YEAR / 30_000
    year = owned(server_factor=1, network_share=0, years=1).fixed_usd_per_hour * HOURS_PER_YEAR / 30_000
    assert start == pytest.approx(0.322, abs=0.001)
    assert year == pytest.approx(0.276, abs=0.001)


def test_electricity_is_the_small_part_that_the_study_found() -> None:
    share = owned().energy_usd_per_hour / owned().usd_per_used_hour(0.7)
    assert 0.02 < share < 0.06


def test_break_even_is_where_both_cost_the_same() -> None:
    share = owned().break_even(3.0)
    assert share is not None and owned().usd_per_used_hour(share) == pytest.approx(3.0)
    assert owned().break_even(0.5) is None
    assert owned().break_even(0.01) is None


def own(*words: str) -> Result:
    return CliRunner().invoke(main, ["cost", "own", *words])


def test_command_compares_with_instances(tmp_path: Path) -> None:
    result = own("--accelerator", "NVIDIA H100 80GB HBM3", "--price-usd", "30000", "--instance", "p5.48xlarge",
                 "--instance", "g5.xlarge", "-o", str(tmp_path / "own.json"))  # fmt: skip
    assert result.exit_code == 0, result.output
    record = load(tmp_path / "own.json")
    mine, p5, g5 = (row.quantities for row in record.rows)
    assert mine["cost_usd_per_hour"].value == pytest.approx(owned().usd_per_used_hour(0.7))
    assert p5["break_even_utilization"].value == pytest.approx(owned().break_even(55.04 / 8))
    assert g5["break_even_utilization"].value is None
    assert "has A10G, not H100-SXM5-80GB" in record.notes[0]


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("--accelerator", "H100", "--price-usd", "1"), 1, "could be any of"),
        (("--accelerator", "TPU-v5e", "--price-usd", "1"), 1, "publishes no power"),
        (("--accelerator", "T4", "--price-usd", "0"), 2, "above 0"),
        (("--accelerator", "T4", "--price-usd", "1", "--utilization", "2"), 2, "above 0 and of at most 1"),
    ],
)
def test_bad_requests(words: tuple[str, ...], code: int, message: str) -> None:
    result = own(*words)
    assert result.exit_code == code and message in result.output


def test_instances_complete_in_the_shell() -> None:
    from computekit_cost.price import price

    option = next(param for param in price.params if param.name == "instances")
    found = [item.value for item in option.type.shell_complete(None, option, "p4d.")]  # type: ignore[arg-type]
    assert found == ["p4d.24xlarge"]
