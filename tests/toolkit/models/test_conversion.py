"""One kind of model file as another: the weights stay what they are, the rest is kept where it can be."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result
from safetensors.torch import load_file, save_file

from computekit import cli, open_model

STATE = {"module.a": torch.arange(6.0).reshape(2, 3), "module.b": torch.ones(2, dtype=torch.int64)}
Convert = Callable[..., Result]


@pytest.fixture
def convert(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Convert:
    """``convert("a.pt", "b.pt", "--dtype", "bf16")`` in the test's folder."""
    monkeypatch.chdir(tmp_path)
    return lambda *words: CliRunner().invoke(cli.main, ["convert", *words])


def checkpoint() -> dict[str, Any]:
    optimizer = {"state": {0: {"exp_avg": torch.zeros(1000)}}, "param_groups": [{"lr": 0.1}]}
    return {"epoch": 3, "state_dict": dict(STATE), "optimizer": optimizer, "ema": {k: v + 1 for k, v in STATE.items()}}


def test_there_and_back(convert: Convert, tmp_path: Path) -> None:
    torch.save(STATE, "a.pt")
    assert convert("a.pt", "b.safetensors").exit_code == 0
    assert convert("b.safetensors").exit_code == 0
    found = torch.load("b.pt", weights_only=True)
    assert list(found) == list(STATE) and all(torch.equal(found[name], STATE[name]) for name in STATE)
    assert (tmp_path / "b.pt.record.json").exists()


def test_a_checkpoint_keeps_the_rest(convert: Convert) -> None:
    torch.save(checkpoint(), "a.pt")
    assert convert("a.pt", "b.pt", "--strip-optimizer", "--dtype", "bf16", "--strip-prefix", "module.").exit_code == 0
    found = torch.load("b.pt", weights_only=True)
    assert list(found) == ["epoch", "state_dict", "ema"]
    assert found["state_dict"]["a"].dtype == torch.bfloat16
    assert found["state_dict"]["b"].dtype == torch.int64
    assert Path("b.pt").stat().st_size < Path("a.pt").stat().st_size


def test_one_of_several_models_without_its_prefix(convert: Convert) -> None:
    torch.save(checkpoint(), "a.pt")
    assert convert("a.pt", "b.safetensors", "--part", "ema", "--strip-prefix", "module.").exit_code == 0
    assert torch.equal(load_file("b.safetensors")["a"], STATE["module.a"] + 1)
    result = convert("a.pt", "c.safetensors", "--part", "teacher")
    assert result.exit_code == 1 and "it holds state_dict, ema" in result.output


def test_bare_weights(convert: Convert) -> None:
    torch.save({"epoch": 1, "model": STATE, "computekit": {"data": "digits"}}, "a.pt")
    assert convert("a.pt", "b.pt", "--bare").exit_code == 0
    assert list(torch.load("b.pt", weights_only=True)) == list(STATE)


def test_ties_survive_a_change_of_kind_and_name(convert: Convert) -> None:
    weight = torch.arange(6.0)
    torch.save({"module.emb.weight": weight, "module.head.weight": weight}, "a.pt")
    assert convert("a.pt", "b.safetensors", "--strip-prefix", "module.").exit_code == 0
    assert len(load_file("b.safetensors")) == 1
    assert set(open_model("b.safetensors").tensors) == {"emb.weight", "head.weight"}
    assert convert("b.safetensors", "c.pt", "--dtype", "fp16").exit_code == 0
    found = torch.load("c.pt", weights_only=True)
    assert found["emb.weight"].data_ptr() == found["head.weight"].data_ptr()


def test_a_folder_needs_a_configuration(convert: Convert) -> None:
    save_file(STATE, "a.safetensors")
    assert "--config" in convert("a.safetensors", "folder").output
    Path("config.json").write_text('{"model_type": "bert"}')
    assert convert("a.safetensors", "folder", "--config", "config.json", "--dtype", "bf16").exit_code == 0
    assert (Path("folder") / "config.json").read_text() == '{\n  "model_type": "bert",\n  "dtype": "bfloat16"\n}\n'
    assert convert("folder", "again.safetensors").exit_code == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["b.xyz"], "no kind of model file is called .xyz"),
        (["b.pt", "--strip-prefix", "model."], "no names that begin with 'model.'"),
        (["b.pt", "--strip-optimizer"], "holds no optimizer state"),
        (["b.pt", "--dtype", "fp16"], "beyond the range of fp16"),
        (["a.safetensors"], "is the input itself"),
    ],
)
def test_what_cannot_be_done_is_said(words: list[str], message: str, convert: Convert) -> None:
    save_file({"module.a": torch.tensor([1e9])}, "a.safetensors")
    before = Path("a.safetensors").read_bytes()
    result = convert("a.safetensors", *words)
    assert result.exit_code == 1 and message in result.output and len(result.output.splitlines()) == 1
    assert Path("a.safetensors").read_bytes() == before


def test_the_default_target_is_named_after_the_model(convert: Convert) -> None:
    save_file(STATE, "w.safetensors")
    Path("m.safetensors.index.json").write_text(json.dumps({"weight_map": dict.fromkeys(STATE, "w.safetensors")}))
    Path("Model-3.1").mkdir()
    (Path("Model-3.1") / "config.json").write_text("{}")
    save_file(STATE, "Model-3.1/model.safetensors")
    for model, expected in (("m.safetensors.index.json", "m.pt"), ("Model-3.1", "Model-3.1.safetensors")):
        assert convert(model).exit_code == 0
        assert len(open_model(expected).tensors) == 2


def test_two_targets_are_one_too_many(convert: Convert) -> None:
    save_file(STATE, "a.safetensors")
    assert convert("a.safetensors", "b.pt", "-o", "c.pt").exit_code == 2
    assert convert("a.safetensors", "-o", "c.pt").exit_code == 0


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_eight_bit_floats_become_wider(dtype: torch.dtype, convert: Convert) -> None:
    weight = torch.randn(8, 8).to(dtype)
    torch.save({"fc.weight": weight}, "a.pt")
    assert convert("a.pt", "b.pt", "--dtype", "fp16").exit_code == 0
    assert torch.equal(torch.load("b.pt", weights_only=True)["fc.weight"], weight.to(torch.float16))


@pytest.mark.parametrize("kind", ["quantized", "sparse"])
def test_no_weight_is_left_behind_in_silence(kind: str, convert: Convert) -> None:
    odd = {
        "sparse": torch.eye(3).to_sparse(),
        "quantized": torch.quantize_per_tensor(torch.eye(3), 0.1, 0, torch.qint8),
    }
    torch.save({"a": torch.ones(2, 2), "b": odd[kind]}, "a.pt")
    result = convert("a.pt", "b.safetensors")
    assert result.exit_code == 1 and f"holds 'b', a {kind} tensor" in result.output
    assert convert("a.pt", "b.pt", "--dtype", "bf16").exit_code == 0
    assert torch.equal(torch.load("b.pt")["b"].to_dense().dequantize(), odd[kind].to_dense().dequantize())
