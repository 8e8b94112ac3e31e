"""Programs in files (TorchScript, exported) with several typed inputs: counted, timed, or refused by argument."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result
from torch import nn

from computekit import cli


class Voice(nn.Module):
    """A wave and its sampling rate, as voice detectors take them."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(32, 4)

    def forward(self, x: torch.Tensor, sr: int) -> torch.Tensor:
        if sr != 16000:
            raise ValueError("only 16000 Hz")
        y: torch.Tensor = self.layer(x)
        return y


class Ids(nn.Module):
    """Token ids and a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(9, 4)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.table(ids).sum(2) * mask


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("programs")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.script(Voice().eval()).save(str(folder / "voice.jit"))
        example = (torch.ones(1, 6, dtype=torch.int64), torch.ones(1, 6, dtype=torch.int64))
        torch.export.save(torch.export.export(Ids().eval(), example), folder / "ids.pt2")
    return folder


def invoke(*words: object) -> Result:
    return CliRunner().invoke(cli.main, [*map(str, words), "--threads", "1", "--quiet"])


def test_a_number_beside_the_wave_is_counted(folder: Path) -> None:
    result = invoke("estimator", "count", folder / "voice.jit", "--input-shape", "32+value=16000", "--json")
    assert result.exit_code == 0, result.output
    (row,) = json.loads(result.stdout)["rows"]
    assert row["quantities"]["forward_flops"]["value"] == pytest.approx(2 * 32 * 4, abs=8)
    assert json.loads(result.stdout)["options"]["input_shape"] == ["32", "value=16000"]


def test_typed_inputs_of_an_exported_program_are_counted(folder: Path) -> None:
    words = ("estimator", "count", folder / "ids.pt2", "--trust-pickle", "--json")
    result = invoke(*words, "--input-shape", "6:int64+6:int64")
    assert result.exit_code == 0, result.output
    assert "value" in json.loads(result.stdout)["rows"][0]["quantities"]["forward_flops"]


def test_without_shapes_the_arguments_are_told(folder: Path) -> None:
    result = invoke("estimator", "count", folder / "voice.jit", "--json")
    (row,) = json.loads(result.stdout)["rows"]
    reason = row["quantities"]["forward_flops"]["reason"]
    assert "(x: Tensor, sr: int)" in reason and "--input-shape" in reason


@pytest.mark.slow
@pytest.mark.parametrize(("file", "shape"), [("voice.jit", "32+value=16000"), ("ids.pt2", "6:int64+6:int64")])
def test_programs_with_several_inputs_are_timed(file: str, shape: str, folder: Path) -> None:
    words = ("benchmark", "models", folder / file, "--trust-pickle", "--time-budget", "1", "--throughput-batches", "")
    result = invoke(*words, "--input-shape", shape, "--json", "-o", folder / f"{file}.json")
    assert result.exit_code == 0, result.output
    (row,) = json.loads(result.stdout)["rows"]
    assert row["quantities"]["latency_s"]["value"] > 0


@pytest.mark.slow
def test_a_missing_argument_is_named(folder: Path) -> None:
    result = invoke("benchmark", "models", folder / "voice.jit", "--input-shape", "32", "--time-budget", "1")
    assert result.exit_code == 1
    assert "'sr'" in result.stderr
