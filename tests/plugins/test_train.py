"""``computekit train``: the file, its record, and what goes wrong."""

from __future__ import annotations

import itertools
import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result

import computekit
from computekit import evaluation, records
from computekit.cli import main
from computekit.testing import make_model


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def _run(words: str) -> Result:
    return CliRunner().invoke(main, shlex.split(words))


def _values(record: records.Record) -> dict[str, Any]:
    return {key: quantity.value for key, quantity in record.rows[0].quantities.items()}


def test_the_file_and_its_record() -> None:
    result = _run("train --arch mlp --arch-args hidden=16,depth=1 --data digits --epochs 2 --batch-size 32 -o m.pt")
    assert result.exit_code == 0, result.output
    module, arch, metadata = computekit.load_module("m.pt")
    assert arch.args == {"in_features": 64, "classes": 10, "hidden": 16, "depth": 1}
    assert metadata["data"] == "digits"
    record = records.load("m.pt.record.json")
    values = _values(record)
    assert values["parameters"] == sum(p.numel() for p in module.parameters()) == 65 * 16 + 17 * 10
    assert values["file_bytes"] == Path("m.pt").stat().st_size
    train = record.details["data"]["samples"]["train"]
    macs = 64 * 16 + 16 * 10
    assert values["train_flops"] == 2 * train * (2 * macs + 2 * macs + 2 * 16 * 10)
    accuracy = record.rows[0].quantities["accuracy"]
    assert accuracy.interval is not None and accuracy.interval[0] < values["accuracy"] < accuracy.interval[1]
    assert [epoch["epoch"] for epoch in record.details["history"]] == [1, 2]
    assert record.details["recipe"]["batch_size"] == 32
    assert record.rows[0].quantities["train_samples_per_s"].how == "measured"


def test_two_runs_give_the_same_bytes_and_the_same_record() -> None:
    for name in ("a", "b"):
        assert _run(f"train --arch mlp --data digits --epochs 1 --threads 1 --label m -o {name}.pt").exit_code == 0
    assert Path("a.pt").read_bytes() == Path("b.pt").read_bytes()
    first, second = (json.loads(json.dumps(records.load(f"{n}.pt.record.json").reproducible())) for n in "ab")
    second["output"]["path"] = first["output"]["path"]
    assert first == second


def test_text_and_an_architecture_of_one_s_own() -> None:
    Path("my_text_model.py").write_text(
        "from torch import nn\n"
        "def build(width=8):\n    return nn.Sequential(nn.Embedding(256, width), nn.Linear(width, 256))\n"
    )
    Path("t.txt").write_bytes(b"abcd" * 2000)
    result = _run("train --arch my_text_model:build --arch-args width=16 --data t.txt --epochs 3 --lr 0.05 --json")
    assert result.exit_code == 0, result.output
    assert 1 <= _values(records.load("build-t.pt.record.json"))["perplexity"] < 1.5
    assert records.Record.model_validate_json(result.stdout).rows[0].label == "build-t"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--arch resnt --data digits", "unknown architecture 'resnt'; did you mean resnet?"),
        ("--arch resnet --data digts", "unknown data set 'digts'; did you mean digits?"),
        ("--arch gpt --data digits", "architecture 'gpt' is for language-modeling"),
        ("--arch nowhere:build --data digits", "cannot import architecture 'nowhere:build'"),
        ("--arch mlp --data digits --arch-args in_features=5", "architecture 'mlp' cannot take samples of shape 1x8x8"),
        ("--arch mlp --data digits --arch-args classes=4", "architecture 'mlp' tells 4 classes apart"),
        ("--arch resnet --data digits --arch-args in_channels=3", "cannot take samples of shape 1x8x8"),
        ("--arch mlp --data digits -o nowhere/m.pt", "the folder nowhere does not exist"),
        ("--arch mlp --data nothing.npz", "nothing.npz: no such data file"),
        ("--arch mlp --data digits --optimizer sgd --lr 1e30 --clip 0 --epochs 2", "the loss became NaN or infinite"),
    ],
)
def test_what_goes_wrong_is_one_line_and_leaves_the_old_file(words: str, message: str) -> None:
    Path("m.pt").write_text("old")
    result = _run(f"train {words}" + ("" if "-o" in words else " -o m.pt"))
    assert result.exit_code == 1
    assert message in result.output and result.output.strip().count("\n") == 0
    assert Path("m.pt").read_text() == "old" and sorted(p.name for p in Path().iterdir()) == ["m.pt"]


def test_ctrl_c_leaves_the_old_file(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(torch.optim.AdamW, "step", interrupt)
    Path("m.pt").write_text("old")
    result = _run("train --arch mlp --data digits -o m.pt")
    assert (result.exit_code, "interrupted; nothing was written" in result.output) == (1, True)
    assert [p.name for p in Path().iterdir()] == ["m.pt"]


def test_ctrl_c_keeps_the_checkpoint_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    words = "train --arch mlp --data digits --epochs 2 --resume -o m.pt"
    original, steps = torch.optim.AdamW.step, iter(range(30))

    def interrupt(*arguments: Any) -> Any:
        if next(steps, None) is None:
            raise KeyboardInterrupt
        return original(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(torch.optim.AdamW, "step", interrupt)
        assert "m.pt.checkpoint is kept: the same command goes on" in _run(words).output
    assert [p.name for p in Path().iterdir()] == ["m.pt.checkpoint"]
    assert _run(words).exit_code == 0
    assert _run(words.replace("--resume -o m.pt", "-o n.pt")).exit_code == 0
    assert Path("m.pt").read_bytes() == Path("n.pt").read_bytes()


@pytest.mark.parametrize(
    ("words", "good"),
    [("train --arch mlp", 0), ("prune old.pt --ratio 0.5", 2), ("distill old.pt --student mlp --control", 1)],
)
@pytest.mark.parametrize("fault", [KeyboardInterrupt(), torch.OutOfMemoryError("no room for it")])
def test_a_test_split_that_fails_costs_the_metric_alone(
    words: str, good: int, fault: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``good``: how often the test split is evaluated before anything is trained."""
    make_model(Path("old.pt"))
    original, calls = evaluation.evaluate, itertools.count()

    def evaluate(*arguments: Any, **named: Any) -> Any:
        if next(calls) >= good:
            raise fault
        return original(*arguments, **named)

    monkeypatch.setattr(evaluation, "evaluate", evaluate)
    result = _run(f"{words} --data digits --epochs 1 -o m.pt")
    assert result.exit_code == 0, result.output
    computekit.load_module("m.pt")
    accuracy = records.load("m.pt.record.json").rows[0].quantities["accuracy"]
    assert accuracy.value is None and accuracy.reason is not None
    reason = "interrupted" if isinstance(fault, KeyboardInterrupt) else "failed: OutOfMemoryError: no room for it"
    assert reason in accuracy.reason and f"unknown: {accuracy.reason}" in result.stdout


def test_checkpoint_every_needs_resume() -> None:
    result = _run("train --arch mlp --data digits --checkpoint-every 5")
    assert (result.exit_code, "give both" in result.output) == (2, True)


def test_ranks_and_torchrun_belong_together(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "torchrun --nproc-per-node 2 -m computekit" in _run("train --arch mlp --data digits --parallel ddp").output
    monkeypatch.setenv("WORLD_SIZE", "2")
    result = _run("train --arch mlp --data digits")
    assert (result.exit_code, "say how they share: --parallel ddp or fsdp" in result.output) == (1, True)


def test_utilization_is_a_share_of_the_given_peak() -> None:
    words = "train --arch gpt --arch-args dim=16,depth=2,heads=2 --data t.txt --epochs 1 --recompute -o m.pt"
    Path("t.txt").write_bytes(b"abcd" * 4000)
    assert _run(f"{words} --peak 1e12").exit_code == 0
    quantities = records.load("m.pt.record.json").rows[0].quantities
    rate, samples = quantities["train_samples_per_s"].value, records.load("m.pt.record.json").details["data"]["samples"]
    per_sample = quantities["train_flops"].value / samples["train"]  # type: ignore[operator]
    assert quantities["mfu"].value == pytest.approx(rate * per_sample / 1e12, rel=0.02)  # type: ignore[operator]
    assert quantities["hfu"].value > quantities["mfu"].value  # type: ignore[operator]
    assert "did you mean" in _run(f"{words} --peak H100-SXM5-80G").output
    assert "is no rate" in _run(f"{words} --peak -1").output


def test_profile_leaves_a_trace_beside_the_output() -> None:
    result = _run("train --arch mlp --data digits --epochs 1 --profile -o m.pt")
    assert result.exit_code == 0 and "aten::addmm" in result.output
    assert "traceEvents" in json.loads(Path("m.pt.trace.json").read_text())


@pytest.mark.slow
@pytest.mark.parametrize("data", ["digits", "mnist5k"])
def test_resnet_reaches_97_percent_with_the_defaults(data: str) -> None:
    assert _run(f"train --arch resnet --data {data} --threads 1 -o m.pt").exit_code == 0
    assert _values(records.load("m.pt.record.json"))["accuracy"] >= 0.97


@pytest.mark.parametrize(
    "words",
    ["train --arch mlp --data digits --epochs 1", "prune model.pt --ratio 0.5", "distill model.pt --student mlp"],
)
def test_an_output_named_like_another_kind_of_file_is_refused_before_any_work(words: str) -> None:
    make_model(Path("model.pt"))
    result = _run(f"{words} -o out.safetensors")
    assert result.exit_code == 1
    assert "out.safetensors: is named like a safetensors file, and what is written is a torch archive" in result.stderr
    assert [path.name for path in Path().iterdir()] == ["model.pt"]
