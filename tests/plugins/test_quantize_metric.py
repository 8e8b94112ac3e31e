"""Metrics of quantize: by task, cosine to the original, and a callable of the user's."""

from __future__ import annotations

import json
from pathlib import Path

import numpy
import pytest
import torch
from click.testing import CliRunner, Result
from torch import nn

import computekit
from computekit.cli import main
from computekit.datasets import Split, from_arrays
from computekit_quantize import metric

MINE = """
import torch
from torch import nn

torch.manual_seed(0)
centres = torch.randn(3, 16)

def build():
    module = nn.Sequential(nn.Linear(16, 16, bias=False), nn.Linear(16, 3, bias=False))
    module[0].weight.data = torch.eye(16) + 0.01 * torch.randn(16, 16)
    module[1].weight.data = centres.clone()
    return module

def data():
    targets = torch.arange(120) % 3
    return centres[targets] + 0.1 * torch.randn(120, 16), targets

def share(module, split):
    return (module(split.inputs).argmax(1) == split.targets).float().mean()

def error(module, split):
    return 1 - float(share(module, split))

def nan(module, split):
    return float("nan")

def text(module, split):
    return "good"

def broken(module, split):
    raise ValueError("not\\ntoday")

def more_classes():
    targets = torch.arange(120) % 5
    return torch.randn(120, 16), targets

def wider():
    return torch.randn(120, 20), torch.arange(120) % 3

number = 3
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    name = f"mine_{abs(hash(tmp_path))}"
    (tmp_path / f"{name}.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)
    module = __import__(name)
    torch.save(module.build().state_dict(), tmp_path / "m.pt")
    return tmp_path


def quantize(folder: Path, *words: str) -> Result:
    mine = next(folder.glob("mine_*.py")).stem
    asked = ["--data", "mine:data", "--arch", "mine:build", *words]
    words = tuple(word.replace("mine:", f"{mine}:") for word in asked)
    return CliRunner().invoke(main, ["quantize", "--int8", str(folder / "m.pt"), *words, "--json"])


def test_a_callable_of_the_users_decides(folder: Path) -> None:
    result = quantize(folder, "--metric", "mine:share", "--max-drop", "0.1")
    assert result.exit_code == 0, result.stderr
    record = json.loads(result.stdout)
    assert record["rows"][0]["quantities"]["metric"]["value"] > 0.9
    assert record["details"]["before"]["value"] == 1
    assert record["details"]["search"]["stopped"] == "done"


def test_lower_is_better_where_that_is_said(folder: Path) -> None:
    result = quantize(folder, "--metric", "mine:error", "--metric-direction", "lower", "--max-drop", "0.1")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["rows"][0]["quantities"]["gate_drop"]["value"] >= 0


def test_cosine_has_a_paired_interval(folder: Path) -> None:
    result = quantize(folder, "--metric", "cosine", "--max-drop", "1")
    assert result.exit_code == 0, result.stderr
    quantities = json.loads(result.stdout)["rows"][0]["quantities"]
    low, high = quantities["cosine"]["interval"]
    assert 0.99 < low <= quantities["cosine"]["value"] <= high <= 1
    assert quantities["cosine_difference"]["interval"] is not None


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["--metric", "mine:nan"], 1, "returned nan for the model"),
        (["--metric", "mine:text"], 1, "returned a str for the model; it must return one number"),
        (["--metric", "mine:broken"], 1, "failed on the model: ValueError: not"),
        (["--metric", "mine:number"], 1, "is a int, not a callable"),
        (["--metric", "mine:shar"], 1, "did you mean share?"),
        (["--metric", "cosin"], 1, "did you mean cosine?"),
        (["--metric", "perplexity"], 1, "its metric is accuracy, not perplexity"),
        (["--metric-direction", "lower"], 2, "is for a --metric of your own"),
        (["--max-drop", "1", "--time-budget", "0"], 2, "not a time above zero"),
        (["--max-drop", "1", "--time-budget", "-5m"], 2, "not a time above zero"),
        (["--max-drop", "1", "--time-budget", "soon"], 2, "not a time above zero"),
        (["--max-drop", "nan"], 2, "not a finite number"),
        (["--objective", "bytes"], 2, "say --max-drop too"),
        (["--time-budget", "5m"], 2, "say --max-drop too"),
    ],
)
def test_bad_goals_are_one_line(folder: Path, words: list[str], status: int, said: str) -> None:
    result = quantize(folder, *words)
    assert result.exit_code == status, result.stderr
    assert said in result.stderr
    assert "Traceback" not in result.stderr
    assert not list(folder.glob("*-int8*"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--data", "mine:more_classes"], "tells 3 classes apart, but the data has class 4"),
        (["--data", "mine:wider"], "cannot take samples of shape 20"),
        (["--data", "mine:data", "--activations", "static", "--calibration", "mine:wider"], "cannot take samples"),
    ],
)
def test_data_that_does_not_fit_is_one_line(folder: Path, words: list[str], said: str) -> None:
    result = quantize(folder, *words)
    assert result.exit_code == 1
    assert said in result.stderr
    assert not list(folder.glob("*-int8*"))


def test_inputs_alone_do_for_cosine(folder: Path) -> None:
    numpy.savez(folder / "inputs.npz", inputs=numpy.random.RandomState(0).randn(50, 16))
    mine = next(folder.glob("mine_*.py")).stem
    asked = [
        "quantize",
        "--int8",
        str(folder / "m.pt"),
        "--arch",
        f"{mine}:build",
        "--data",
        str(folder / "inputs.npz"),
    ]
    result = CliRunner().invoke(main, [*asked, "--metric", "cosine", "--max-drop", "1", "--json"])
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["rows"][0]["quantities"]["cosine"]["value"] > 0.99
    for words, said in ([], "say --metric cosine"), (["--metric", "cosine", "--qat-epochs", "1"], "no targets"):
        result = CliRunner().invoke(main, [*asked, *words])
        assert result.exit_code == 1
        assert said in result.stderr


def test_weights_without_code_cannot_be_measured(folder: Path) -> None:
    mine = next(folder.glob("mine_*.py")).stem
    asked = ["quantize", "--int8", str(folder / "m.pt"), "--data", f"{mine}:data", "--max-drop", "1"]
    result = CliRunner().invoke(main, asked)
    assert result.exit_code == 1
    assert "holds weights without code; say which architecture with --arch" in result.stderr


def test_cosine_needs_no_head() -> None:
    class Encoder(nn.Module):
        """Returns what transformers' encoders return."""

        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 8)

        def forward(self, inputs: torch.Tensor) -> object:
            hidden = self.layer(inputs)
            return type("Output", (), {"last_hidden_state": hidden})()

    sequences = Split(torch.randn(10, 5, 4), torch.zeros(10, dtype=torch.long))
    data = computekit.Data("d", "classification", sequences, sequences, sequences, 1, "here")
    torch.manual_seed(0)
    original = Encoder()
    cosine = metric.Cosine(data, torch.device("cpu"), 3, original)
    assert cosine.score(original, "test").value == pytest.approx(1)
    other = Encoder()
    before, after = cosine.score(original, "validation"), cosine.score(other, "validation")
    assert cosine.drop(before, after) == pytest.approx(100 * (1 - after.value), abs=1e-4)
    assert after.value < 0.9


def test_a_part_of_a_split_is_spread_over_it() -> None:
    x = torch.arange(60.0).view(30, 2)
    data = from_arrays("d", x, torch.arange(30) % 3, "here")
    usual = metric.OfTask(data, torch.device("cpu"), 8)
    few = usual.samples("test", 3)
    assert len(few) == 3
    assert few.inputs[-1, 0] > data.test.inputs[len(data.test) // 2, 0]
