"""``computekit benchmark models`` with real files and real processes."""

from __future__ import annotations

import copy
import json
import textwrap

import pytest
from click.testing import CliRunner

import computekit
from computekit import cli, host
from computekit.models import ArchRef, build, save_module
from computekit_benchmark.compare import PERCENTILES
from computekit_benchmark.jobs import JobFailed

ZOO = """
    import os, signal
    import torch
    from torch import nn

    def mlp(width=32) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))

    class Odd(nn.Module):
        def __init__(self, fault):
            super().__init__()
            self.fault, self.layer, self.calls = fault, nn.Linear(64, 10), 0

        def forward(self, x):
            x = self.layer(x.flatten(1))
            if self.fault == "raises":
                raise RuntimeError("only even batches")
            if self.fault == "dies":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.fault == "nan":
                return x * float("nan")
            self.calls += 1
            if self.fault == "moody":
                return x[:, : 5 + self.calls % 2]
            return x[:, :5] if self.fault == "shape" else x
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with an importable ``benchzoo`` and a function that makes model files of it."""
    (tmp_path / "benchzoo.py").write_text(textwrap.dedent(ZOO))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def make(name: str, callable_: str = "mlp", **args: object) -> str:
    arch = ArchRef(f"benchzoo:{callable_}", args)
    save_module(build(arch), f"{name}.pt", arch)
    return f"{name}.pt"


def invoke(*args: str):
    result = CliRunner().invoke(cli.main, ["benchmark", *args, "--threads", "1", "--quiet"])
    return result.exit_code, result.stdout, result.stderr


QUICK = ("--input-shape", "1,8,8", "--time-budget", "1", "--throughput-batches", "")


@pytest.mark.slow
def test_a_hundred_times_wider_model_is_slower_and_the_record_says_all(folder):
    models = make("small", width=16), make("wide", width=20_000)
    status, out, _ = invoke("models", *models, *QUICK, "--json", "--name", "s", "--name", "w", "-o", "r.json")
    assert status == 0
    record = json.loads(out)
    (pair,) = record["details"]["measured"]["pairs"]
    assert (pair["a"], pair["b"], pair["verdict"]) == ("s", "w", "slower")
    assert pair["trials"] == len(pair["values"]) >= 5
    assert pair["interval"][0] <= pair["ratio"] <= pair["interval"][1]
    small, wide = record["rows"]
    assert (small["label"], wide["label"]) == ("s", "w")
    assert wide["sha256"] == computekit.records.FileRef.of("wide.pt").sha256
    weights = 4 * wide["quantities"]["parameters"]["value"]
    assert wide["quantities"]["peak_memory_bytes"]["value"] == pytest.approx(weights, abs=1e6)
    assert small["quantities"]["latency_s"]["interval"][0] > 0
    assert "value" not in small["quantities"]["energy_j"] or small["quantities"]["energy_j"]["value"] > 0
    assert record == json.loads((folder / "r.json").read_text())
    orders = {tuple(trial["order"]) for trial in record["details"]["measured"]["trials"]}
    assert orders <= {("s", "w"), ("w", "s")}


@pytest.mark.slow
def test_broken_odd_and_equal_models_are_named_and_the_sound_ones_measured(folder):
    faults = {fault: make(fault, "Odd", fault=fault) for fault in ("raises", "dies", "nan", "shape", "moody")}
    good = make("good")
    status, out, _ = invoke("models", good, *faults.values(), good, *QUICK, "--json")
    assert status == 0
    record = json.loads(out)
    pairs = record["details"]["measured"]["pairs"]
    assert [pair["b"] for pair in pairs] == ["nan.pt", "shape.pt", "moody.pt", "good.pt #2"]
    reasons = {row["label"]: row["quantities"]["latency_s"].get("reason", "") for row in record["rows"]}
    assert "only even batches" in reasons["raises.pt"]
    assert "ended by SIGKILL" in reasons["dies.pt"]
    notes = "\n".join(record["notes"])
    for said in (
        "nan.pt returns 10 values that are NaN",
        "shape.pt returns shape [1, 5]",
        "in the next, for the same inputs",
        "compares a model with itself",
    ):
        assert said in notes


@pytest.mark.slow
def test_a_model_without_a_metric_is_timed_and_named(folder):
    models = make("good"), make("nan", "Odd", fault="nan"), make("shape", "Odd", fault="shape")
    status, out, _ = invoke("models", *models, "--data", "digits", *QUICK[2:], "--json")
    assert status == 0
    record = json.loads(out)
    good, nan, shape = (row["quantities"] for row in record["rows"])
    assert 0 <= good["accuracy"]["value"] <= 1
    assert "gives NaN or infinite outputs" in nan["accuracy"]["reason"]
    assert "tells 5 classes apart" in shape["accuracy"]["reason"]
    assert nan["latency_s"]["value"] > 0 and shape["latency_s"]["value"] > 0
    assert any(note.startswith("nan: ") and note.endswith("its accuracy is unknown") for note in record["notes"])
    status, out, _ = invoke("models", models[1], models[0], "--data", "digits", *QUICK[2:], "--json")
    second = json.loads(out)["rows"][1]["quantities"]
    assert (status, second["accuracy_difference"]["reason"]) == (0, "the accuracy of nan is unknown")


@pytest.mark.parametrize("examined", [1, 2])
def test_ctrl_c_before_the_first_trial_keeps_what_is_known(folder, monkeypatch, examined):
    found = {
        "parameters": 2410,
        "output_shape": [1, 10],
        "nonfinite": 0,
        "peak_memory_bytes": 9000,
        "energy_reason": "-",
    }
    tasks = []

    def run(job, _seconds):
        tasks.append(job.task)
        if len(tasks) > examined:
            raise KeyboardInterrupt
        return dict(found)

    monkeypatch.setattr("computekit_benchmark.jobs.run", run)
    code, out, _ = invoke("models", make("a"), make("b", width=64), *QUICK, "--json")
    record = json.loads(out)
    assert code == 130
    assert record["details"]["measured"]["partial"] is True
    first, second = (row["quantities"] for row in record["rows"])
    assert first["peak_memory_bytes"]["value"] == 9000
    assert first["latency_s"]["reason"] == "interrupted"
    assert ("reason" in second["peak_memory_bytes"]) == (examined == 1)
    assert any("interrupted after 0 trials" in note for note in record["notes"])


FOUND = {
    "isolated": {
        "parameters": 2410, "output_shape": [1, 10], "nonfinite": 0, "peak_memory_bytes": 9000, "energy_reason": "-",
    },
    "trial": {
        "batches": {"1": [{"first_call_s": 1.0, "warm_up_s": [1.0], "visits": [[1.0]] * 6}] * 2},
        "failures": {}, "order": ["a", "b"],
    },
}  # fmt: skip


@pytest.mark.parametrize(("end", "expected"), [(KeyboardInterrupt(), 130), (JobFailed("it hangs"), 0)])
def test_what_was_timed_is_kept_when_the_look_inside_fails(folder, monkeypatch, end, expected):
    def run(job, _seconds):
        if job.task not in FOUND:
            raise end
        return copy.deepcopy(FOUND[job.task])

    monkeypatch.setattr("computekit_benchmark.jobs.run", run)
    models = make("a"), make("b", width=64)
    code, out, _ = invoke("models", *models, *QUICK, "--numerics", "--roofline", "--json")
    record = json.loads(out)
    assert code == expected
    assert record["details"]["measured"]["partial"] is (code == 130)
    assert [pair["verdict"] for pair in record["details"]["measured"]["pairs"]] == ["same"]
    said = "interrupted while looking inside" if code else "no numerics of b: it hangs"
    assert any(said in note for note in record["notes"])


def test_ceilings_that_do_not_exist_are_refused_before_anything_is_measured(folder, monkeypatch):
    monkeypatch.setattr("computekit_benchmark.jobs.run", lambda job, _seconds: pytest.fail(job.task))
    code, out, err = invoke("models", make("a"), *QUICK, "--roofline", "--ceilings", "nowhere.json")
    assert (code, out) == (1, "")
    assert "nowhere.json" in err


@pytest.mark.slow
def test_one_broken_model_alone_is_one_line(folder):
    status, out, err = invoke("models", make("odd", "Odd", fault="raises"), *QUICK)
    assert (status, out) == (1, "")
    assert err.count("\n") == 1
    assert "only even batches" in err


@pytest.mark.slow
def test_without_inputs_the_error_says_which_option_helps(folder):
    status, _, err = invoke("models", make("m"), "--time-budget", "1")
    assert status == 1
    assert "--data or --input-shape" in err


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--name", "only-one"), "give one for each"),
        (("--name", "x", "--name", "x"), "same --name"),
        (("--clock", "device"), "needs a CUDA device"),
        (("--input-shape", "3,x"), "not a list of whole numbers"),
        (("--throughput-batches", "0"), "not a list of whole numbers"),
        (("--margin", "0"), "above 0 and of at most 1"),
        (("--device", "cuda:77"), "not available"),
    ],
)
def test_bad_options_are_one_line_and_leave_the_old_record(folder, args, said):
    models = make("a"), make("b")
    (folder / "old.json").write_text("old")
    status, out, err = invoke("models", *models, *args, "-o", "old.json")
    assert status in (1, 2)
    assert out == ""
    assert said in err
    assert err.strip().count("\n") == 0
    assert (folder / "old.json").read_text() == "old"


def test_the_step_and_its_columns_are_registered():
    registry = host.Host.discover()
    step = registry.steps["benchmark"]
    assert step.exclusive
    assert step.argv == ("benchmark", "models")
    described = {column.key for column in registry.columns}
    assert {"accuracy", "verdict", "peak_memory_bytes"} <= described
    ends = ("", *(f"_p{100 * q:g}" for q in PERCENTILES))
    assert {f"{clock}{end}_s" for clock in ("latency", "cpu_time") for end in ends} <= described


def test_the_group_runs_models_by_default(folder):
    status, _, err = invoke("nowhere.pt")
    assert status == 1
    assert "nowhere.pt: no such model file" in err
