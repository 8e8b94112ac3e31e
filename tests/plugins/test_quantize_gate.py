"""The accuracy gate finds the one weight that breaks a model, and says so when nothing helps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result
from torch import nn

import computekit
from computekit.cli import main
from computekit.datasets import load_data

pytest.importorskip("sklearn")

ARCHITECTURE = """
from torch import nn

def build():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.Linear(64, 10))
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> nn.Module:
    """A least-squares classifier of digits behind an identity layer; both quantize well."""
    (tmp_path / "two_layers.py").write_text(ARCHITECTURE)
    monkeypatch.syspath_prepend(tmp_path)
    train = load_data("digits").train
    x = train.inputs.flatten(1).double()
    x1 = torch.cat([x, torch.ones(len(x), 1, dtype=torch.double)], 1)
    y = nn.functional.one_hot(train.targets, 10).double()
    solution = torch.linalg.solve(x1.T @ x1 + 0.1 * torch.eye(65, dtype=torch.double), x1.T @ y).float()
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.Linear(64, 10))
    with torch.no_grad():
        module[1].weight.copy_(torch.eye(64))
        module[1].bias.zero_()
        module[2].weight.copy_(solution[:64].T)
        module[2].bias.copy_(solution[64])
    return module


def poison(layer: nn.Linear) -> None:
    """A huge weight on a pixel that is never lit: harmless in floating point, and it takes all steps of the grid."""
    unlit = int((load_data("digits").train.inputs.flatten(1).abs().amax(0) == 0).nonzero()[0])
    with torch.no_grad():
        layer.weight[:, unlit] = 1e4


def poison_inputs(first: nn.Linear, second: nn.Linear) -> None:
    """A huge value goes into ``second`` that it does not look at: only rounding its inputs does harm."""
    unlit = int((load_data("digits").train.inputs.flatten(1).abs().amax(0) == 0).nonzero()[0])
    with torch.no_grad():
        first.bias[unlit] = 1e7  # rows with outliers are rounded twice, with 15 bits
        second.weight[:, unlit] = 0


def quantize(tmp_path: Path, module: nn.Module, *words: str) -> Result:
    torch.save(module.state_dict(), tmp_path / "m.pt")
    arch = ["--data", "digits", "--arch", "two_layers:build"]
    return CliRunner().invoke(main, ["quantize", "--int8", str(tmp_path / "m.pt"), *arch, *words, "--json"])


def kept(result: Result) -> list[str]:
    tensors = json.loads(result.stdout)["details"]["tensors"]
    return [t["name"] for t in tensors if t.get("kept") == "left as it is by the search"]


def test_nothing_is_left_out_of_a_healthy_model(tmp_path: Path, module: nn.Module) -> None:
    result = quantize(tmp_path, module, "--max-drop", "2")
    assert result.exit_code == 0, result.stderr
    assert kept(result) == []


def test_only_the_poisoned_layer_is_left_out(tmp_path: Path, module: nn.Module) -> None:
    poison(module[1])
    result = quantize(tmp_path, module, "--max-drop", "2", "--sensitivity")
    assert result.exit_code == 0, result.stderr
    assert kept(result) == ["1.weight"]
    record = json.loads(result.stdout)
    assert record["details"]["sensitivity"][0]["name"] == "1.weight"
    assert record["details"]["sensitivity"][0]["weight"]["drop"] > 20
    assert [t["left_out"] for t in record["details"]["search"]["tried"]] == [0, 1, 0]
    assert record["rows"][0]["quantities"]["gate_drop"]["value"] <= 2


@pytest.mark.parametrize("activations", ["dynamic", "static"])
@pytest.mark.parametrize("objective", ["bytes", "latency"])
def test_a_layer_with_huge_inputs_computes_in_floats(
    tmp_path: Path, module: nn.Module, activations: str, objective: str
) -> None:
    poison_inputs(module[1], module[2])
    asked = ["--activations", activations, "--objective", objective, "--max-drop", "2", "--sensitivity"]
    result = quantize(tmp_path, module, *asked, *(["--observer", "min-max"] if activations == "static" else []))
    assert result.exit_code == 0, result.stderr
    details = json.loads(result.stdout)["details"]
    worst = details["sensitivity"][0]
    assert worst["name"] == "2.weight"
    assert worst["inputs"]["drop"] > 20 > abs(worst["weight"]["drop"])
    words = {t["name"]: t.get("scheme") for t in details["tensors"]}
    assert objective == "latency" or words["2.weight"] == "int8"  # its weight is not to blame
    compression = computekit.open_model(tmp_path / "m-int8.pt").metadata["compression"]
    assert "2.weight" not in compression["activations"]


def test_a_gate_that_nothing_meets_saves_the_nearest_and_exits_with_3(tmp_path: Path, module: nn.Module) -> None:
    poison(module[1])
    poison(module[2])
    result = quantize(tmp_path, module, "--max-drop", "2")
    assert result.exit_code == 3
    assert "the nearest was saved" in result.stderr
    assert (tmp_path / "m-int8.pt").exists()
    assert (tmp_path / "m-int8.pt.record.json").exists()


def test_the_gate_needs_data(tmp_path: Path, module: nn.Module) -> None:
    torch.save(module.state_dict(), tmp_path / "m.pt")
    assert CliRunner().invoke(main, ["quantize", "--int8", str(tmp_path / "m.pt"), "--max-drop", "1"]).exit_code == 2


def test_a_dry_run_writes_nothing(tmp_path: Path, module: nn.Module) -> None:
    torch.save(module.state_dict(), tmp_path / "m.pt")
    result = CliRunner().invoke(main, ["quantize", "--int8", str(tmp_path / "m.pt"), "--dry-run"])
    assert result.exit_code == 0, result.stderr
    assert "1.weight" in result.stdout
    assert not (tmp_path / "m-int8.pt").exists()


@pytest.mark.parametrize(
    ("words", "unheard"),
    [
        ((), ""),
        (("--data", "digits", "--max-drop", "1"), "--data, --max-drop"),
        (("--max-bytes", "0.3", "--calibration", "digits"), "--calibration, --max-bytes"),
        (("--backend", "compile", "--data", "digits"), "--data, --backend"),
    ],
)
def test_a_dry_run_says_what_it_leaves_out(
    tmp_path: Path, module: nn.Module, words: tuple[str, ...], unheard: str
) -> None:
    torch.save(module.state_dict(), tmp_path / "m.pt")
    words = ("--int8", str(tmp_path / "m.pt"), "--arch", "two_layers:build", *words)
    result = CliRunner().invoke(main, ["quantize", *words, "--dry-run"])
    assert result.exit_code == 0, result.stderr
    assert ("a dry run shows" in result.output) == bool(unheard)
    assert f"without {unheard}" in result.output or not unheard


@pytest.mark.parametrize("words", [(), ("--dry-run",)])
@pytest.mark.parametrize(
    ("arch", "problem"),
    [("resnett", "did you mean"), ("two_layers:built", "two_layers"), ("mlp", "m.pt: lacks ")],
)
def test_an_architecture_is_checked_even_if_nothing_runs_it(
    tmp_path: Path, module: nn.Module, words: tuple[str, ...], arch: str, problem: str
) -> None:
    torch.save(module.state_dict(), tmp_path / "m.pt")
    result = CliRunner().invoke(main, ["quantize", "--int8", str(tmp_path / "m.pt"), "--arch", arch, *words])
    assert result.exit_code == 1, result.output
    assert problem in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "m-int8.pt").exists()
