"""Options that would change nothing are refused, and so are names of another kind of file; nothing is written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file, save_file

from computekit.cli import main
from computekit.testing import make_model


@pytest.fixture(autouse=True)
def model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.chdir(tmp_path)
    return make_model(tmp_path / "model.pt")


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("--int8 --qat-lr 0.1", "--qat-lr belongs to --qat-epochs"),
        ("--int8 --calibration-samples 8", "--calibration-samples: int8 looks at no data"),
        ("--int8 --race-batch 4", "--race-batch is for --backend auto"),
        ("--int8 --race-seconds 4", "--race-seconds is for --backend auto"),
        ("--int8 --race-without compile", "--race-without is for --backend auto"),
        ("--int8 --wide *", "--wide gives tensors 8 bits, and int8 has 8"),
        ("--scheme bf16 --group-size 32", "--group-size: bf16 has no scales"),
        ("--scheme bf16 --rest fp16", "--rest fp16: bf16 is the type of all weights"),
    ],
)
def test_an_option_that_would_change_nothing_is_a_usage_error(words: str, problem: str) -> None:
    result = CliRunner().invoke(main, ["quantize", *words.split(), "model.pt"])
    assert result.exit_code == 2
    assert problem in result.stderr
    assert [path.name for path in Path().iterdir()] == ["model.pt"]


@pytest.mark.parametrize("ending", ["safetensors", "onnx", "gguf", "pt2", "safetensors.index.json"])
def test_a_name_of_another_kind_of_file_is_refused(ending: str) -> None:
    result = CliRunner().invoke(main, ["quantize", "--int8", "model.pt", "-o", f"out.{ending}"])
    assert result.exit_code == 1
    assert f"out.{ending}: is named like a " in result.stderr
    assert "computekit convert" in result.stderr
    assert [path.name for path in Path().iterdir()] == ["model.pt"]


def test_dequantize_refuses_such_names_too() -> None:
    assert CliRunner().invoke(main, ["quantize", "--int8", "model.pt"]).exit_code == 0
    result = CliRunner().invoke(main, ["dequantize", "model-int8.pt", "-o", "out.safetensors"])
    assert result.exit_code == 1
    assert "out.safetensors: is named like a safetensors file" in result.stderr
    assert not Path("out.safetensors").exists()


@pytest.mark.parametrize("name", ["out.pth", "out.weights", "out", "out.bin"])
def test_other_names_of_the_same_kind_are_fine(name: str) -> None:
    result = CliRunner().invoke(main, ["quantize", "--int8", "model.pt", "-o", name])
    assert result.exit_code == 0, result.stderr
    assert Path(name).exists()


def test_old_pickles_become_archives_and_shards_may_be_joined() -> None:
    torch.save(torch.load("model.pt", weights_only=True), "old.dat", _use_new_zipfile_serialization=False)
    save_file({"a.weight": torch.randn(64, 64)}, "s-1.safetensors")
    index = {"metadata": {}, "weight_map": {"a.weight": "s-1.safetensors"}}
    Path("m.safetensors.index.json").write_text(json.dumps(index))
    for model, output in (("old.dat", "old.pt"), ("m.safetensors.index.json", "m.safetensors")):
        result = CliRunner().invoke(main, ["quantize", "--int8", model, "-o", output])
        assert result.exit_code == 0, result.stderr
    assert "computekit" in torch.load("old.pt", weights_only=True)
    assert load_file("m.safetensors")["a.weight"].dtype == torch.int8
