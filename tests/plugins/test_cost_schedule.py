"""Checkpoints, preemptions and the price of spot."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

import computekit
from computekit import ComputekitError, host
from computekit.cli import main
from computekit.records import Record, load
from computekit_cost import reliability
from computekit_cost.schedule import Job, mixed, plan

LLAMA3_MTBF_S = 54 * 24 * 3600 / 419  # 419 unexpected interruptions in 54 days on 16384 GPUs (arXiv 2407.21783)


def test_published_mean_time_between_interruptions() -> None:
    assert pytest.approx(3.1, rel=0.005) == LLAMA3_MTBF_S / 3600
    assert reliability.job_mtbf(50_700 * 3600, 16384) == pytest.approx(LLAMA3_MTBF_S, rel=0.001)


def test_young_and_daly_on_that_machine() -> None:
    assert reliability.young_interval(60, 11_134) == pytest.approx(1156, rel=0.001)
    assert reliability.daly_interval(60, 11_134) == pytest.approx(1116, rel=0.001)
    assert reliability.daly_interval(100, 10) == 10


@pytest.mark.parametrize(("checkpoint", "first_order"), [(60, 0.104), (300, 0.23)])
def test_waste_agrees_with_the_first_order_estimate(checkpoint: float, first_order: float) -> None:
    """C / interval + interval / 2M, which ignores failures during checkpoints and second failures."""
    interval = reliability.young_interval(checkpoint, LLAMA3_MTBF_S)
    assert reliability.waste(interval, checkpoint, 0, LLAMA3_MTBF_S) == pytest.approx(first_order, rel=0.1)


def test_waste_agrees_with_a_simulation() -> None:
    generator = random.Random(0)
    interval, checkpoint, restart, mtbf, rounds = 900.0, 60.0, 120.0, 3600.0, 20_000
    wall = 0.0
    for _ in range(rounds):
        while (failure := generator.expovariate(1 / mtbf)) < interval + checkpoint:
            wall += failure
            while (again := generator.expovariate(1 / mtbf)) < restart:
                wall += again
            wall += restart
        wall += interval + checkpoint
    simulated = 1 - rounds * interval / wall
    assert reliability.waste(interval, checkpoint, restart, mtbf) == pytest.approx(simulated, rel=0.05)


@given(st.floats(1, 600), st.floats(0, 600), st.floats(3600, 1e7))
def test_daly_interval_is_close_to_the_best_one(checkpoint: float, restart: float, mtbf: float) -> None:
    chosen = reliability.waste(reliability.daly_interval(checkpoint, mtbf), checkpoint, restart, mtbf)
    best = min(
        reliability.waste(factor * reliability.young_interval(checkpoint, mtbf), checkpoint, restart, mtbf)
        for factor in (0.3, 0.5, 0.7, 0.8, 0.9, 1.0, 1.1, 1.3, 2.0)
    )
    assert chosen <= best + 0.002
    assert 0 < chosen < 1


def test_spot_is_cheaper_exactly_below_the_break_even() -> None:
    job = Job(work_s=100 * 3600, machines=2, checkpoint_s=60, restart_s=300)
    on_demand = plan("on demand", job, 10.0, None)
    assert (on_demand.usd, on_demand.waste) == (2000, 0)
    share = 1 - plan("spot", job, 1.0, 6 * 3600).waste
    assert plan("spot", job, 10 * share * 0.999, 6 * 3600).usd < on_demand.usd
    assert plan("spot", job, 10 * share * 1.001, 6 * 3600).usd > on_demand.usd


def test_mix_lies_between() -> None:
    job = Job(3600 * 10, 1, 60, 300)
    on_demand, spot = plan("on demand", job, 10.0, None), plan("spot", job, 3.0, 3 * 3600)
    both = mixed(spot, on_demand, 0.7)
    assert both.usd == pytest.approx(0.7 * spot.usd + 0.3 * on_demand.usd)
    assert on_demand.wall_s < both.wall_s < spot.wall_s
    assert both.wall_s * (1 - both.waste) == pytest.approx(job.work_s)


def test_machines_that_stop_all_the_time_are_refused() -> None:
    with pytest.raises(ComputekitError, match="too often to get on"):
        plan("spot", Job(3600, 1000, 600, 600), 1.0, 3600)


def schedule(tmp_path: Path, *words: str) -> Result:
    return CliRunner().invoke(main, ["cost", "schedule", *words, "-o", str(tmp_path / "plan.json")])


def test_command_compares_spot_with_on_demand(tmp_path: Path) -> None:
    result = schedule(tmp_path, "--instance", "gcp/a3-highgpu-8g/us-east4", "--hours", "200", "--preemption-h", "6",
                      "--spot-share", "0.7")  # fmt: skip
    assert result.exit_code == 0, result.output
    record: Record = load(tmp_path / "plan.json")
    rows = {row.label: row.quantities for row in record.rows}
    assert list(rows) == ["on demand", "spot", "70% spot"]
    assert rows["on demand"]["job_cost_usd"].value == pytest.approx(200 * 88.5558)
    saving = rows["spot"]["saving"].value
    assert isinstance(saving, float) and 0.4 < saving < 1 - 36.3208 / 88.5558
    assert "41% of on demand" in record.notes[0]


def test_command_needs_a_spot_price(tmp_path: Path) -> None:
    result = schedule(tmp_path, "--instance", "g5.xlarge", "--hours", "1", "--preemption-h", "6")
    assert result.exit_code == 1 and "has no spot price" in result.output


def test_spot_price_that_looks_like_a_floor_is_doubted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import computekit_cost

    class Plugin:
        @computekit.hookimpl
        def computekit_prices(self) -> list[computekit.Price]:
            return [computekit.Price("x", "big", "y", 75.9552, 7.59552, "2026-11-01", "a list")]

    registry = host.Host.of(("cost", computekit_cost), ("mine", Plugin()))
    monkeypatch.setattr(host, "current", lambda: registry)
    result = schedule(tmp_path, "--instance", "big", "--hours", "1", "--preemption-h", "6")
    assert result.exit_code == 0, result.output
    assert "exactly a tenth of on demand" in load(tmp_path / "plan.json").notes[1]
