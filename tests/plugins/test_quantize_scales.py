"""Scales in two bytes: smaller files whose weights are as good and come back in the type that they had."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file, save_file
from torch import nn

import computekit
from computekit.cli import main
from computekit.models import compressed, open_model
from computekit.models.float_view import FloatView
from computekit_quantize import plan

SHAPES = {"a": (33, 70), "b": (64, 128), "c": (7, 3, 3, 3)}


def run(*words: str) -> None:
    result = CliRunner().invoke(main, [*words])
    assert result.exit_code == 0, result.stderr


def weights() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return {f"{name}.weight": torch.randn(shape) for name, shape in SHAPES.items()}


@pytest.fixture(autouse=True)
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save_file(weights(), "m.safetensors")


@pytest.mark.parametrize("scheme", ["int4", "int4-mse", "int4-asym", "hqq"])
def test_weights_come_back_in_their_type_and_nearly_as_with_wide_scales(scheme: str) -> None:
    run("quantize", "--scheme", scheme, "m.safetensors", "-o", "wide.safetensors")
    run("quantize", "--scheme", scheme, "m.safetensors", "--scales", "bf16", "-o", "half.safetensors")
    stored = load_file("half.safetensors")
    assert {t.dtype for name, t in stored.items() if name.endswith("_scale")} == {torch.bfloat16}
    wide, half = FloatView(open_model("wide.safetensors")), FloatView(open_model("half.safetensors"))
    for name, weight in weights().items():
        assert half.tensors[name].dtype == half.load(name).dtype == torch.float32
        errors = [(view.load(name) - weight).square().mean() for view in (wide, half)]
        assert errors[1] < 1.01 * errors[0]
    saved = sum(t.nbytes for t in load_file("wide.safetensors").values()) - sum(t.nbytes for t in stored.values())
    assert saved == sum(t.nbytes for name, t in stored.items() if name.endswith("_scale"))


def test_what_is_planned_is_what_is_written() -> None:
    for scheme in ("int4", "hqq"):
        run("quantize", "--scheme", scheme, "m.safetensors", "--scales", "bf16", "-o", "half.safetensors")
        decisions = plan.make(open_model("m.safetensors"), plan.Request(scheme, scales="bf16"))
        expected = sum(decision.bytes_after for decision in decisions)
        assert expected == sum(t.nbytes for t in load_file("half.safetensors").values())


def test_dequantized_and_loaded_models_are_float32() -> None:
    run("quantize", "--int4", "m.safetensors", "--scales", "bf16", "-o", "half.safetensors")
    run("dequantize", "half.safetensors", "-o", "float.safetensors")
    assert {tensor.dtype for tensor in load_file("float.safetensors").values()} == {torch.float32}
    module = nn.ModuleDict(
        {"a": nn.Linear(70, 33, bias=False), "b": nn.Linear(128, 64, bias=False), "c": nn.Conv2d(3, 7, 3, bias=False)}
    )
    computekit.load_into(module, "half.safetensors")
    view = FloatView(open_model("half.safetensors"))
    for name in weights():
        assert torch.equal(module.get_submodule(name[0]).weight, view.load(name))


def test_models_in_two_bytes_keep_their_type() -> None:
    mixed = {name: tensor.bfloat16() if name[0] == "b" else tensor for name, tensor in weights().items()}
    save_file(mixed, "mixed.safetensors")
    run("quantize", "--int4", "mixed.safetensors", "--scales", "bf16", "-o", "half.safetensors")
    view = FloatView(open_model("half.safetensors"))
    assert {name: view.load(name).dtype for name in mixed} == {name: tensor.dtype for name, tensor in mixed.items()}
    run("quantize", "--int4", "mixed.safetensors", "--scales", "bf16", "-o", "again.safetensors")
    assert Path("half.safetensors").read_bytes() == Path("again.safetensors").read_bytes()


def test_a_damaged_type_is_said() -> None:
    packed = compressed.quantize(torch.randn(4, 8))
    torch.save(
        {
            "state_dict": dict(packed.store("w.weight", half_scales=True)),
            "computekit": {"format": 1, "compression": {"scales_of": "float3"}},
        },
        "bad.pt",
    )
    result = CliRunner().invoke(main, ["dequantize", "bad.pt"])
    assert result.exit_code == 1
    assert "wants scales of 'float3' for 'w.weight'; the file is damaged" in result.stderr


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--scheme", "bf16", "--scales", "bf16"), "bf16 has no groups"),
        (("--int8", "--scales", "bf16"), "int8 has no groups"),
        (("--int4", "--scales", "x"), "'x' is not"),
    ],
)
def test_scales_that_are_none_are_refused(words: tuple[str, ...], problem: str) -> None:
    result = CliRunner().invoke(main, ["quantize", *words, "m.safetensors"])
    assert result.exit_code == 2
    assert problem in result.stderr


def test_the_record_has_no_more_quantized_than_weights() -> None:
    """What is stored in two bytes around them is called that."""
    tensors = {**weights(), **{f"{name}.bias": torch.randn(shape[0]) for name, shape in SHAPES.items()}}
    save_file(tensors, "m.safetensors")
    result = CliRunner().invoke(main, ["quantize", "--int8", "--rest", "bf16", "m.safetensors", "--json"])
    rows = json.loads(result.stdout)["details"]["coverage"]
    assert {(row["role"], row["fate"]) for row in rows} == {
        ("linear", "quantized"), ("conv", "quantized"), ("bias", "stored in bf16"),
    }  # fmt: skip
    shown = CliRunner().invoke(
        main, ["quantize", "--int8", "--rest", "bf16", "m.safetensors", "-o", "again.safetensors"]
    )
    share = sum(t.nbytes for t in weights().values()) / sum(t.nbytes for t in tensors.values())
    assert f"{share:.1%} quantized" in shown.stdout
