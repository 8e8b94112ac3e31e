"""``computekit inspect``: everything that is in the file is reported, and nothing in it is run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch import nn

from computekit import cli
from computekit.models import compressed


def report(path: Path, *words: str) -> dict[str, Any]:
    result = CliRunner().invoke(cli.main, ["inspect", str(path), "--json", *words])
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.output)
    return found


def test_a_training_checkpoint(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(100, 100), nn.Linear(100, 100))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 100)).sum().backward()
    optimizer.step()
    torch.save({"step": 7, "model_state": model.state_dict(), "opt": optimizer.state_dict()}, tmp_path / "a.pt")
    found = report(tmp_path / "a.pt")
    assert found["format"] == "torch" and found["parameters"] == 20_200
    assert found["dtypes"] == {"float32": {"tensors": 4, "values": 20_200, "bytes": 80_800}}
    step, state = found["other_content"]
    assert step == {"key": "step", "optimizer": False, "bytes": 0, "value": 7}
    assert state["optimizer"] and 2 * 80_800 <= state["bytes"] < 2 * 80_800 + 100
    assert any("--strip-optimizer saves 6" in line for line in found["can"])
    assert found["tensors"][0] == {"name": "0.weight", "shape": [100, 100], "dtype": "float32", "bytes": 40_000}


def test_ties_duplicates_and_values_that_are_not_finite(tmp_path: Path) -> None:
    weight = torch.arange(400.0)
    bad = torch.ones(300)
    bad[3], bad[5] = torch.nan, torch.inf
    torch.save({"a": weight, "b": weight, "c": weight.clone(), "d": bad}, tmp_path / "a.pt")
    found = report(tmp_path / "a.pt")
    assert found["tied"] == [["a", "b"]]
    assert found["duplicates"] == [["a", "c"]]
    assert found["non_finite"] == {"d": {"nan": 1, "inf": 1}}
    assert found["dtypes"]["float32"]["bytes"] == 4 * (400 + 400 + 300)
    assert report(tmp_path / "a.pt", "--headers-only")["non_finite"] is None


def test_what_a_pickle_would_import_is_listed(tmp_path: Path) -> None:
    torch.save(nn.Linear(3, 2), tmp_path / "a.pt")
    found = report(tmp_path / "a.pt")
    assert "torch.nn.modules.linear.Linear" in found["unsafe_globals"]
    assert [entry["name"] for entry in found["tensors"]] == ["weight", "bias"]
    assert "--trust-pickle" in found["can"][0]


@pytest.mark.parametrize(
    ("names", "family"),
    [
        ({"lstm.weight_ih_l0": (8, 3), "lstm.weight_hh_l0": (8, 2)}, "LSTM network"),
        ({"gru.weight_ih_l0": (6, 3), "gru.weight_hh_l0": (6, 2)}, "GRU network"),
        ({"layer1.0.conv1.weight": (4, 3, 3, 3), "layer1.0.bn1.weight": (4,)}, "ResNet"),
        (
            {"transformer.h.0.attn.c_attn.weight": (4, 12), "wte.weight": (9, 4), "wpe.weight": (9, 4)},
            "GPT-2-like decoder",
        ),
        ({"fc.weight": (4, 3)}, "multi-layer perceptron"),
        ({"table": (4,)}, None),
    ],
)
def test_the_family_is_guessed_from_names(names: dict[str, Any], family: str | None, tmp_path: Path) -> None:
    torch.save({name: torch.ones(shape) for name, shape in names.items()}, tmp_path / "a.pt")
    found = report(tmp_path / "a.pt", "--headers-only")["family"]
    assert (found and found[0]) == family


def test_the_report_for_a_person(tmp_path: Path) -> None:
    torch.save({f"layers.{i}.weight": torch.ones(30, 30) for i in range(20)}, tmp_path / "a.pt")
    text = CliRunner().invoke(cli.main, ["inspect", str(tmp_path / "a.pt")]).output
    assert "18,000 in 20 tensors: float32 72 kB" in text
    assert "and 8 smaller tensors" in text
    assert "layers.19.weight" in CliRunner().invoke(cli.main, ["inspect", str(tmp_path / "a.pt"), "--all"]).output


def test_what_is_no_model_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "a.pt").write_text("hello")
    result = CliRunner().invoke(cli.main, ["inspect", str(tmp_path / "a.pt")])
    assert result.exit_code == 1 and len(result.output.splitlines()) == 1


def test_the_parameters_of_a_compressed_file_are_those_of_the_model(tmp_path: Path) -> None:
    state = {"fc.weight": torch.ones(4, 8).char(), "fc.weight_scale": torch.ones(4, 1), "fc.bias": torch.ones(4)}
    torch.save(state, tmp_path / "a.pt")
    assert report(tmp_path / "a.pt")["parameters"] == 36


@pytest.mark.parametrize("shape", [[2**40, 8], [-4, 8], []])
def test_a_packed_weight_that_cannot_have_its_shape(shape: list[int], tmp_path: Path) -> None:
    packed = {"w_packed": torch.ones(4, 1, dtype=torch.int32), "w_scale": torch.ones(4, 1)}
    torch.save({**packed, "w_shape": torch.tensor(shape, dtype=torch.int64)}, tmp_path / "a.pt")
    result = CliRunner().invoke(cli.main, ["inspect", str(tmp_path / "a.pt")])
    assert result.exit_code == 1 and "does not fit its 32 packed values" in result.output


def test_zero_points_that_do_not_fit_are_damage(tmp_path: Path) -> None:
    stored = dict(compressed.quantize(torch.ones(4, 8), 4, zero_points=True).store("w"))
    torch.save({**stored, "w_zero_point": torch.zeros(2, 1, dtype=torch.int32)}, tmp_path / "a.pt")
    result = CliRunner().invoke(cli.main, ["inspect", str(tmp_path / "a.pt")])
    assert result.exit_code == 1 and "zero points of 'w' have shape [2, 1] where [1, 1] belongs" in result.output


def test_text_that_the_terminal_lacks_is_escaped(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(2, 2), "\ud800": 3, "ü": 4, "名": 5}, tmp_path / "a.pt")
    words = [sys.executable, "-c", "from computekit.cli import run; run()", "inspect", str(tmp_path / "a.pt")]
    done = subprocess.run(words, env={**os.environ, "PYTHONIOENCODING": "latin-1"}, capture_output=True, check=False)
    assert done.returncode == 0 and b"\\ud800: 3" in done.stdout, done.stderr
    assert "ü: 4".encode("latin-1") in done.stdout and b"\\u540d: 5" in done.stdout
