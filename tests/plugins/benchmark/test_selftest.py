"""The self-test's bookkeeping, and one real pair."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from computekit import cli
from computekit_benchmark import selftest, verdicts, workloads


def pair(workload: str, same: float, five: float) -> dict:
    def against(ratio: float) -> dict:
        values = [ratio + 1e-3 * i for i in range(-2, 3)]
        return verdicts.compare("a", "b", values, margin=0.02, clock="wall", batch_size=1).as_dict()

    return {"workload": workload, "seconds": 10.0, "same_model": against(same), "five_percent": against(five)}


def test_report_counts_false_verdicts_and_power_by_workload():
    pairs = [pair("mlp", 0.0, 0.05), pair("mlp", 0.1, 0.05), pair("convnet", 0.0, 0.0), pair("convnet", 0.0, -0.1)]
    report = selftest.report(pairs)
    assert (report["pairs"], report["false_verdicts"], report["power_5pct"]) == (4, 1, 0.5)
    assert report["wrong_direction"] == 1
    by_name = {entry["name"]: entry for entry in report["workloads"]}
    assert by_name["mlp"]["false_verdicts"] == 1
    assert by_name["convnet"]["power_5pct"] == 0.0


def test_an_unresolved_pair_is_no_false_verdict():
    noisy = pair("mlp", 0.0, 0.05)
    noisy["same_model"]["verdict"] = "unresolved"
    report = selftest.report([noisy])
    assert (report["false_verdicts"], report["unresolved"]) == (0, 1)


@pytest.mark.parametrize("workload", workloads.WORKLOADS, ids=lambda w: w.name)
def test_twenty_one_layers_are_five_percent_more_work(workload):
    factory = getattr(workloads, workload.name)
    base, more = (sum(p.numel() for p in factory(depth).parameters()) for depth in (20, 21))
    assert more / base == 1.05


@pytest.mark.slow
def test_self_test_prints_the_promised_json():
    result = CliRunner().invoke(
        cli.main, ["benchmark", "self-test", "--json", "--threads", "1", "--time-budget", "1", "--quiet"]
    )
    assert result.exit_code == 0
    report = json.loads(result.stdout)
    assert {"pairs", "false_verdicts", "power_5pct", "workloads"} <= set(report)
    assert report["pairs"] == len(report["workloads"]) == 1
