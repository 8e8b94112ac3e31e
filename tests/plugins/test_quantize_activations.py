"""``computekit quantize --activations static``: from the command line to a file that runs, and back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result

from computekit import load_module, open_model, save_module
from computekit.cli import main
from computekit.models import ArchRef, build, int8_static

pytest.importorskip("sklearn")

RESNET = ArchRef("resnet", {"width": 8})


@pytest.fixture
def model(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    module = build(RESNET).train()
    with torch.no_grad():
        for _ in range(20):  # gives BatchNorm its statistics
            module(torch.rand(32, 1, 8, 8))
    save_module(module.eval(), tmp_path / "m.pt", RESNET)
    return tmp_path / "m.pt"


def run(*words: object) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words])


def quantize(model: Path, *words: object) -> Result:
    return run("quantize", "--int8", "--activations", "static", model, *words)


@pytest.mark.parametrize("observer", ["min-max", "percentile", "mse", "entropy"])
def test_a_file_that_computes_in_integers(model: Path, tmp_path: Path, observer: str) -> None:
    result = quantize(model, "--calibration", "digits", "--observer", observer, "--json")
    assert result.exit_code == 0, result.stderr
    details = json.loads(result.stdout)["details"]
    assert details["calibration"]["samples"] == 128
    assert details["calibration"]["observer"] == observer
    exact, _, _ = load_module(model)
    module, _, metadata = load_module(tmp_path / "m-int8.pt")
    assert metadata["compression"] == {"scheme": "int8", "activations": "static"}
    x = torch.rand(8, 1, 8, 8)
    with torch.no_grad():
        ours, theirs = module(x), exact(x)
    assert (ours - theirs).square().mean().sqrt() < 0.15 * theirs.std()
    if not int8_static.available():
        assert "_int8" in module.__dict__
    assert set(module.state_dict()) == set(torch.load(tmp_path / "m-int8.pt")["state_dict"])


def test_the_same_bytes_each_time(model: Path, tmp_path: Path) -> None:
    contents = []
    for name in ("a.pt", "b.pt"):
        assert quantize(model, "--calibration", "digits", "-o", tmp_path / name).exit_code == 0
        contents.append((tmp_path / name).read_bytes())
    assert contents[0] == contents[1]


def test_other_commands_see_an_ordinary_quantized_file(model: Path, tmp_path: Path) -> None:
    assert quantize(model, "--calibration", "digits").exit_code == 0
    small = tmp_path / "m-int8.pt"
    assert run("dequantize", small, "-o", tmp_path / "floats.pt").exit_code == 0
    assert set(open_model(tmp_path / "floats.pt").tensors) == set(open_model(model).tensors)
    load_module(tmp_path / "floats.pt")
    shown = json.loads(run("inspect", small, "--json").stdout)
    assert shown["parameters"] == json.loads(run("inspect", model, "--json").stdout)["parameters"]
    assert run("convert", small, tmp_path / "m.safetensors").exit_code == 0
    x = torch.rand(4, 1, 8, 8)
    with torch.no_grad():
        converted, _, _ = load_module(tmp_path / "m.safetensors", RESNET)
        assert torch.equal(converted(x), load_module(small)[0](x))
    again = run("quantize", "--int8", small)
    assert again.exit_code == 1
    assert "quantized already" in again.stderr


def test_a_layer_that_is_left_out_computes_in_floats(model: Path, tmp_path: Path) -> None:
    result = quantize(model, "--calibration", "digits", "--exclude", "blocks.1.conv2.weight")
    assert result.exit_code == 0, result.stderr
    state = torch.load(tmp_path / "m-int8.pt")["state_dict"]
    assert "blocks.1.conv1.input_scale" in state
    assert "blocks.1.conv2.input_scale" not in state
    module, _, _ = load_module(tmp_path / "m-int8.pt")
    with torch.no_grad():
        assert torch.isfinite(module(torch.rand(2, 1, 8, 8))).all()


def test_a_dry_run_needs_no_data(model: Path, tmp_path: Path) -> None:
    result = quantize(model, "--dry-run")
    assert result.exit_code == 0, result.stderr
    assert "static" in result.stdout
    assert list(tmp_path.iterdir()) == [model]


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        ([], 2, "needs data to calibrate on"),
        (["--calibration", "nowhere"], 1, "nowhere"),
        (["--calibration", "pydoc"], 1, "cannot take"),
    ],
)
def test_calibration_data_that_are_missing_or_do_not_fit(
    model: Path, tmp_path: Path, words: list[str], status: int, message: str
) -> None:
    result = quantize(model, *words)
    assert (result.exit_code, "Traceback" in result.stderr) == (status, False)
    assert message in result.stderr
    assert list(tmp_path.iterdir()) == [model]


def test_weights_without_code_need_an_architecture(model: Path, tmp_path: Path) -> None:
    torch.save(torch.load(model)["state_dict"], tmp_path / "bare.pt")
    result = quantize(tmp_path / "bare.pt", "--calibration", "digits")
    assert result.exit_code == 1
    assert "--arch" in result.stderr
    result = quantize(
        tmp_path / "bare.pt", "--calibration", "digits", "--arch", "resnet", "--arch-args", '{"width": 8}'
    )
    assert result.exit_code == 0, result.stderr


def test_observers_are_for_static_activations(model: Path) -> None:
    result = run("quantize", "--int8", "--observer", "mse", model)
    assert result.exit_code == 2
    assert "--observer belongs to --activations static" in result.stderr


def test_static_activations_need_eight_bits(model: Path) -> None:
    result = run("quantize", "--int4", "--activations", "static", "--calibration", "digits", model)
    assert result.exit_code == 2
    assert "--int8" in result.stderr
