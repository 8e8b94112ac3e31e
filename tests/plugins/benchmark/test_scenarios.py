"""Scenarios: what a trial may return, what becomes of it in the record, and what is refused before anything runs."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

import computekit
from computekit import ComputekitError, host, records
from computekit.testing import make_model, run_command
from computekit_benchmark import Figure, Load, Scenario, scenario_record, scenarios, serving, system

LOAD = Load(duration_s=0.02, rate_per_s=500, max_batch=4, max_delay_s=0.0, latency_bound_s=1.0, seed=3)
RATE = Figure("x_per_s", "1/s", of="rate")
SHARE = Figure("x_share", "1", of="share", mean="share", method="share of something")
TAIL = Figure("x_latency_p90_s", "s", of="seconds", quantile=0.9)


class Recording:
    """A system under test that answers at once."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []

    def run(self, indices: list[int]) -> None:
        self.batches.append(list(indices))


def put(figure: Figure, *found: object) -> records.Quantity:
    row = records.Row(label="m")
    scenario_record._put(row, figure, list(found))
    return row.quantities[figure.key]


def checked(findings: object, *figures: Figure) -> dict[str, object]:
    return system._checked(Scenario("x", "x", lambda system, load: findings, figures), findings)


@pytest.mark.parametrize("scenario", scenarios.BUILTIN, ids=lambda scenario: scenario.name)
def test_ours_return_what_their_figures_need(scenario: Scenario) -> None:
    asked = Recording()
    findings = scenario.run(asked, LOAD)
    assert asked.batches
    assert max(map(len, asked.batches)) <= LOAD.max_batch
    assert checked(findings, *scenario.figures).keys() == findings.keys()
    assert len({figure.key for figure in scenario.figures}) == len(scenario.figures)


def test_a_server_without_queries_has_no_figures_and_one_with_too_many_is_refused() -> None:
    findings = scenarios.server(Recording(), dataclasses.replace(LOAD, rate_per_s=1e-9))
    [server] = [scenario for scenario in scenarios.BUILTIN if scenario.name == "server"]
    assert all("no query arrived" in str(put(figure, findings[figure.of]).reason) for figure in server.figures)
    with pytest.raises(ComputekitError, match=r"--rate 1e\+12 for .* are more than 10,000,000 queries"):
        scenarios.server(Recording(), dataclasses.replace(LOAD, rate_per_s=1e12))


def test_an_overloaded_server_gives_no_percentile(monkeypatch: pytest.MonkeyPatch) -> None:
    served = serving.Served([0.1, 0.2], [2], unanswered=3, seconds=1.0)
    monkeypatch.setattr(serving, "serve", lambda *_, **__: served)
    findings = scenarios.server(Recording(), LOAD)
    assert findings["answered_s"] == [0.1, 0.2]
    quantity = put(Figure("p", "s", of="latencies_s", quantile=0.5), findings["latencies_s"])
    assert quantity.value is None
    assert "overloaded: at 500 queries per second" in str(quantity.reason)


@given(st.lists(st.floats(1e-6, 1e6), min_size=2, max_size=6))
def test_rates_are_geometric_means_with_an_interval(found: list[float]) -> None:
    quantity = put(RATE, *found)
    assert min(found) * 0.999 <= quantity.value <= max(found) * 1.001
    assert quantity.interval[0] <= quantity.value * 1.001
    assert (quantity.unit, quantity.how) == ("1/s", "measured")


def test_a_rate_of_zero_is_a_number_too() -> None:
    assert put(RATE, 0.0, 2.0, 4.0).value == 2.0


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6))
def test_shares_keep_within_zero_and_one(found: list[float]) -> None:
    quantity = put(SHARE, *found)
    assert "share of something, mean of" in quantity.method
    if len(found) > 1:
        assert 0 <= quantity.interval[0] <= quantity.interval[1] <= 1


def test_a_tail_of_few_queries_is_unknown() -> None:
    chance = random.Random(0)
    assert "too few queries" in put(TAIL, [0.1, 0.2]).reason
    assert 0.8 < put(TAIL, *([chance.random() for _ in range(200)] for _ in range(3))).value < 1


def test_one_trial_without_a_value_makes_the_figure_unknown() -> None:
    assert put(RATE, 1.0, "the network was down").reason == "the network was down"


@pytest.mark.parametrize(
    ("findings", "figure", "complaint"),
    [
        (None, RATE, "returned NoneType, not a dictionary"),
        ({}, RATE, "no 'rate' that is one number, for x_per_s"),
        ({"rate": [1.0]}, RATE, "no 'rate' that is one number"),
        ({"rate": float("nan")}, RATE, "no 'rate' that is one number"),
        ({"seconds": 0.1}, TAIL, "no 'seconds' that is a list of numbers, for x_latency_p90_s"),
        ({"seconds": [0.1, "x"]}, TAIL, "no 'seconds' that is a list of numbers"),
    ],
)
def test_findings_that_make_no_figure_are_refused(findings: object, figure: Figure, complaint: str) -> None:
    with pytest.raises(computekit.ComputekitError, match=complaint):
        checked(findings, figure)


def test_numbers_of_numpy_and_torch_are_numbers() -> None:
    import numpy as np
    import torch

    found = checked({"rate": np.float32(2), "seconds": torch.ones(2), "more": range(2)}, RATE, TAIL)
    assert found == {"rate": 2.0, "seconds": [1.0, 1.0], "more": [0.0, 1.0]}


def plugin(scenario: Scenario) -> ModuleType:
    module = ModuleType("mine")
    hook = scenarios.computekit_benchmark_scenarios
    module.mine = computekit.implements(hook)(lambda: [scenario])  # type: ignore[attr-defined]
    return module


@pytest.mark.parametrize(
    ("words", "code", "complaint"),
    [
        (["--scenario", "min"], 1, "unknown scenario 'min'; did you mean mine?"),
        (["--scenario", "mine", "--scenario-args", "size=1,sise=3"], 1, "argument 'sise'; it takes: size"),
        (["--scenario", "mine"], 1, "missing a required argument: 'size'; it takes: size"),
        (["--scenario", "server", "--scenario-args", "size=3"], 1, "it takes: none"),
        (
            ["--scenario", "mine", "--scenario-args", "size=3", "--loadgen"],
            2,
            "--loadgen drives single-stream, offline",
        ),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_runs(
    words: list[str], code: int, complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import computekit_benchmark

    def mine(system: object, load: Load, size: int) -> dict[str, scenarios.Finding]:
        raise AssertionError

    monkeypatch.chdir(tmp_path)
    make_model(tmp_path / "model.pt")
    ours = host.Host.of(
        ("benchmark", computekit_benchmark), ("mine", plugin(Scenario("mine", "my load", mine, [RATE])))
    )
    with host.using(ours):
        outcome = run_command("benchmark", "scenario", "model.pt", *words)
    assert outcome.exit_code == code
    assert complaint in outcome.stderr
    assert outcome.stderr.count("Error:") == 1
    assert {path.name for path in tmp_path.iterdir()} == {"model.pt"}
