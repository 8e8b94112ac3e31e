"""The estimator's commands as a user calls them: train, infer, plan, scaling, calibrate."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner

from computekit.cli import main
from computekit_estimator import runs, scaling

SMALL = ("--layers", 24, "--hidden", 2048, "--heads", 16)


def invoke(*words: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(main, ["estimator", *map(str, words)])
    return result.exit_code, result.stdout, result.stderr


def record(*words: object) -> dict:
    code, out, err = invoke(*words, "--json")
    assert code == 0, err
    return json.loads(out)


def quantities(*words: object) -> dict:
    return record(*words)["rows"][0]["quantities"]


def test_train_gives_time_memory_energy_and_intervals():
    found = record("train", *SMALL, "--device-name", "A100-SXM4-80GB", "--num-gpus", 8, "--tp", 2, "--global-batch", 64,
                   "--tokens", "1e9")  # fmt: skip
    values = found["rows"][0]["quantities"]
    low, high = values["step_time_s"]["interval"]
    assert low < values["step_time_s"]["value"] < high and values["step_time_s"]["confidence"] == 0.9
    assert values["gpu_hours"]["value"] == pytest.approx(8 * values["training_time_s"]["value"] / 3600)
    assert values["energy_j"]["value"] == pytest.approx(400 * 8 * values["training_time_s"]["value"])
    parts = found["details"]["parts"]
    assert sum(parts["step time, s"].values()) == pytest.approx(values["step_time_s"]["value"])
    assert sum(parts["memory of a rank, GB"].values()) == pytest.approx(values["peak_memory_bytes"]["value"] / 1e9)
    assert any("not modelled" in note for note in found["notes"])


def test_reading_data_can_bound_a_step():
    slow = record(
        "train", *SMALL, "--device-name", "T4", "--precision", "fp16", "--sample-bytes", "1e9", "--data-mb-s", 1
    )
    assert any("data-bound" in note for note in slow["notes"])
    assert slow["rows"][0]["quantities"]["step_time_s"]["value"] == 1000


def test_a_model_that_is_no_transformer_gets_a_roofline():
    values = quantities("train", "--arch", "mlp", "--device-name", "T4", "--precision", "fp32", "--microbatch", 64,
                        "--samples", 1e6)  # fmt: skip
    assert 0 < values["mfu"]["value"] < 1 and values["training_time_s"]["value"] > 0
    assert values["step_time_s"]["interval"][0] < values["step_time_s"]["value"] < values["step_time_s"]["interval"][1]
    assert "measured over predicted" in values["step_time_s"]["method"]


def test_a_device_without_published_runs_is_marked():
    known = record("infer", *SMALL, "--device-name", "H100-SXM5-80GB")
    unknown = record("infer", *SMALL, "--device-name", "MI300X")
    assert not any("no published run" in note for note in known.get("notes", []))
    assert any("no published run is of MI300X" in note for note in unknown["notes"])


def test_infer_lists_throughput_over_batch():
    found = record("infer", *SMALL, "--device-name", "A100-SXM4-80GB", "--batch", 4)
    rates = [row["tokens_per_s"] for row in found["details"]["over_batch"]]
    assert rates == sorted(rates) and len(rates) > 5
    values = found["rows"][0]["quantities"]
    assert values["kv_cache_bytes"]["value"] == 2 * 2 * 24 * 4 * (512 + 128) * 2048


def test_plan_ranks_layouts_and_names_ties():
    found = record("plan", *SMALL, "--device-name", "A100-SXM4-80GB", "--num-gpus", "8,16", "--global-batch", 64)
    ratios = [row["quantities"]["cost_ratio"]["value"] for row in found["rows"]]
    assert ratios[0] == 1 and ratios == sorted(ratios)
    assert {row["quantities"]["num_gpus"]["value"] for row in found["rows"]} == {8, 16}


def test_plan_without_a_device_goes_through_the_catalog():
    found = record("plan", *SMALL, "--num-gpus", 8, "--global-batch", 64)
    times = {row["label"]: row["quantities"]["step_time_s"] for row in found["rows"]}
    assert times["H100-SXM5-80GB"]["value"] < times["A100-SXM4-80GB"]["value"]
    assert "bf16" in times["T4"]["reason"]


def test_scaling_meets_the_closed_form():
    law, budget = scaling.LAWS["hoffmann"], 5.76e23
    g = (law.alpha * law.a / (law.beta * law.b)) ** (1 / (law.alpha + law.beta))
    expected = g * (budget / 6) ** (law.beta / (law.alpha + law.beta))
    values = quantities("scaling", "--law", "hoffmann", "--flops", budget)
    assert values["optimal_parameters"]["value"] == pytest.approx(expected, rel=2e-3)
    served = quantities("scaling", "--law", "hoffmann", "--flops", budget, "--served-tokens", 1e13)
    assert served["optimal_parameters"]["value"] < expected


def test_scaling_recovers_a_law_from_runs(tmp_path):
    law = scaling.LAWS["besiroglu"]
    sizes, tokens = (grid.ravel() for grid in np.meshgrid([1e7, 1e8, 1e9, 1e10], [1e9, 1e10, 1e11]))
    fitted = scaling.fit(sizes, tokens, law.loss(sizes, tokens))
    assert (fitted.alpha, fitted.beta, fitted.floor) == pytest.approx((law.alpha, law.beta, law.floor), rel=0.02)


def own_runs(path, *slower):
    """Published runs as a file, each this many times slower."""
    own = [run for run in runs.load() if run.id.startswith("mlm21_t1") and run.kind == "iter_time_s"]
    lines = [",".join(own[0].cells)]
    for run, factor in zip(own, slower, strict=False):
        cells = {**run.cells, "value": str(factor * run.value), "definition": "", "source": ""}
        lines.append(",".join(cells.values()))
    path.write_text("\n".join(lines))
    return path


def test_calibration_to_runs_that_have_nothing_in_common_is_said_to_be_worse(tmp_path):
    path = own_runs(tmp_path / "own.csv", 1, 3, 1, 0.3, 1, 1)
    code, _, err = invoke("calibrate", path, "-o", tmp_path / "calibration.json")
    assert code == 0 and "the shipped constants predict runs that were not fitted better" in err


def test_calibration_is_applied_by_train(tmp_path):
    path = own_runs(tmp_path / "own.csv", 1.3, 1.3, 1.3, 1.3)  # a cluster that is exactly 30% slower
    target = tmp_path / "calibration.json"
    code, _, err = invoke("calibrate", path, "-o", target)
    assert code == 0 and "shipped constants" not in err, err
    found = json.loads(target.read_text())
    errors = found["rows"][0]["quantities"]
    assert errors["median_error_leave_one_out"]["value"] < 0.05 < errors["median_error_before"]["value"]
    plain = quantities("train", *SMALL, "--device-name", "A100-SXM4-80GB")["step_time_s"]["value"]
    own_time = quantities("train", *SMALL, "--device-name", "A100-SXM4-80GB", "--calibration", target)
    assert own_time["step_time_s"]["value"] > 1.1 * plain


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("train", *SMALL, "--device-name", "H1000"), "unknown hardware 'H1000'"),
        (("train", *SMALL, "--device-name", "H100"), "H100-SXM5-80GB"),
        (("train", *SMALL, "--device-name", "T4", "--precision", "fp16", "--tokens", "nan"), "not a finite number"),
        (("scaling", "--flops", "inf"), "not a finite number"),
        (("infer", *SMALL, "--device-name", "T4", "--tp", 3, "--precision", "fp16"), "the nearest is tp=2"),
        (("count", *SMALL, "--topk", 2), "--topk needs --experts"),
        (("train", *SMALL, "--device-name", "A100-SXM4-80GB", "--num-gpus", 8, "--tp", 3), "the nearest that does is"),
        (("train", *SMALL, "--device-name", "TPU-v4", "--precision", "fp16"), "no fp16 peak of TPU-v4"),
        (("train", *SMALL, "--device-name", "T4"), "no bf16 units; use fp16"),
        (("train", *SMALL, "--device-name", "T4", "--data-mb-s", 4), "belong together"),
        (("train", "--arch", "mlp", "--device-name", "T4", "--precision", "fp32", "--num-gpus", 2), "one device"),
        (("infer", "--arch", "mlp", "--device-name", "T4"), "modelled for transformers"),
        (("plan", *SMALL, "--num-gpus", "8,x", "--global-batch", 64), "is not a list of whole numbers"),
        (("plan", *SMALL, "--num-gpus", 7, "--global-batch", 64, "--device-name", "T4", "--precision", "fp16"),
         "no layout divides"),
        (("plan", "--layers", 96, "--hidden", 12288, "--num-gpus", 1, "--global-batch", 1, "--device-name",
          "A100-SXM4-80GB"), "nothing fits"),
        (("scaling",), "give a budget"),
        (("scaling", "--flops", 1e10, "--served-tokens", 1e12), "do not even serve"),
        (("calibrate", "missing.csv"), "no such runs file"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line(words, says):
    code, _, err = invoke(*words)
    assert code in (1, 2) and says in err and len(err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("a,b\n1,2\n", "has no column parameters"),
        ("parameters,tokens,loss\n1e9,1e9,x\n", "line 2"),
        ("parameters,tokens,loss\n1e9,1e9,2\n", "at least six runs"),
    ],
)
def test_runs_that_cannot_be_fitted(tmp_path, content, says):
    path = tmp_path / "runs.csv"
    path.write_text(content)
    code, _, err = invoke("scaling", "--runs", path)
    assert code == 1 and says in err
