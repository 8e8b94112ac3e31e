"""Backends: what is saved gives back what runs fast, programs beside the file included."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from torch import nn

import computekit
import computekit_quantize
from computekit import host
from computekit.cli import main
from computekit.testing import make_model
from computekit_quantize import Backend, Export, programs, signature


def quantize(*words: str, code: int = 0) -> str:
    result = CliRunner().invoke(main, ["quantize", *words])
    assert result.exit_code == code, result.stderr
    return result.stderr if code else result.stdout


def inputs(count: int = 5) -> torch.Tensor:
    return torch.randn(count, 64, generator=torch.Generator().manual_seed(0))


class Doubled(nn.Module):
    def __init__(self, module: nn.Module, factor: torch.Tensor) -> None:
        super().__init__()
        self.module, self.factor = module, factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(self.module(x)) * self.factor


def _load(source: computekit.ModelFile, build: object) -> nn.Module:
    _, [path] = programs.find(source)
    assert callable(build)
    return Doubled(build(), torch.load(path, weights_only=True))


def _export(job: Export, stem: Path) -> dict[str, str]:
    torch.save(torch.tensor(2.0), stem.with_name(f"{stem.name}.factor"))
    return {"told": job.activations}


@computekit.hookimpl(optionalhook=True)
def computekit_quantization_backends() -> list[Backend]:
    absent = Backend("absent", "needs what nobody has", _load, extra="onnx", packages=("no_such_package",))
    return [Backend("doubling", "twice as much", _load, _export, activations=("dynamic",)), absent]


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    registry = host.Host.of(("quantize", computekit_quantize), ("mine", sys.modules[__name__]))
    monkeypatch.setattr(host, "current", lambda: registry)
    monkeypatch.chdir(tmp_path)
    yield make_model(tmp_path / "model.pt")


def test_a_program_lies_beside_the_file_and_runs_it(model: Path) -> None:
    quantize("--int8", "--backend", "doubling", "model.pt", "-o", "out.pt")
    module, arch, metadata = computekit.load_module("out.pt")
    assert metadata["compression"]["runtime"]["told"] == "dynamic"
    assert list(metadata["compression"]["runtime"]["files"]) == ["out.factor"]
    before = computekit.load_module(model)[0](inputs())
    assert torch.cosine_similarity(module(inputs()), 2 * before).min() > 0.99
    fresh = computekit.models.build(arch)
    assert torch.equal(computekit.load_into(fresh, "out.pt")(inputs()), module(inputs()))
    assert {path.name for path in Path().iterdir()} == {"model.pt", "out.pt", "out.factor", "out.pt.record.json"}


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--int8", "--backend", "opnvino"), "did you mean openvino?"),
        (("--int8", "--backend", "absent"), "no_such_package"),
        (("--int4", "--backend", "onnx"), "has no weights of 4 bits, only of 8"),
        (("--int8", "--backend", "doubling", "--activations", "static"), "has no layers with static activations"),
    ],
)
def test_what_a_backend_cannot_do_is_one_line(words: tuple[str, ...], problem: str, model: Path) -> None:
    assert problem in quantize(*words, str(model), code=1)
    assert [path.name for path in Path().iterdir()] == ["model.pt"]


@pytest.mark.slow
def test_the_race_keeps_what_computes_the_same_and_tells_of_the_others(model: Path) -> None:
    words = ["--race-seconds", "0.01", "--race-batch", "4", "--threads", "1", "--json"]
    told = quantize("--backend", "auto", "--scheme", "bf16", "model.pt", "-o", "auto.pt", *words)
    record = json.loads(told)
    race = {row["name"]: row for row in record["details"]["race"]["candidates"]}
    assert race["absent"]["lost"] == "not installed: pip install 'computekit[onnx]'"
    kept = [row for row in race.values() if row["file_bytes"] and not row["lost"] and "original" not in row["name"]]
    assert len(kept) == 1
    assert kept[0]["cosine"] > 0.997
    assert len(kept[0]["samples_s"]) >= 7
    assert record["details"]["race"]["clock"] == "cpu"
    module, _, _ = computekit.load_module("auto.pt")
    assert torch.cosine_similarity(module(inputs()).float(), computekit.load_module(model)[0](inputs())).min() > 0.99


def test_a_backend_of_8_bits_alone_does_not_take_rest(model: Path) -> None:
    pytest.importorskip("onnxruntime")
    words = ["quantize", "--int8", "--backend", "onnx", "--rest", "bf16", "model.pt"]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 1
    assert "--backend onnx computes in float32 around its layers: leave --rest away" in result.stderr
    assert [path.name for path in Path().iterdir()] == ["model.pt"]


@pytest.mark.parametrize(
    ("backend", "packages", "data"),
    [
        ("onnx", "onnxruntime", []),
        ("onnx", "onnxruntime", ["--calibration", "digits", "--calibration-samples", "16"]),
        ("onnx", "onnxruntime", ["--calibration", "digits", "--activations", "static"]),
        ("openvino", "nncf", []),
        ("openvino", "nncf", ["--calibration", "digits", "--calibration-samples", "16"]),
        ("openvino", "nncf", ["--calibration", "digits", "--activations", "static", "--rest", "bf16"]),
    ],
)
def test_exported_programs_compute_the_same_for_any_batch(
    backend: str, packages: str, data: list[str], model: Path
) -> None:
    pytest.importorskip(packages)
    quantize("--int8", "--backend", backend, *data, "model.pt", "-o", "out.pt")
    module, _, _ = computekit.load_module("out.pt")
    assert isinstance(module, signature.Program)
    before, _, _ = computekit.load_module(model)
    shape = (-1, 1, 8, 8) if data else (-1, 64)
    for count in (1, 3, 7):
        batch = inputs(count).sigmoid().reshape(shape)  # within the range of the data that was calibrated on
        assert torch.cosine_similarity(module(batch), before(batch)).min() > 0.98
    with pytest.raises(RuntimeError, match=r"."):
        module(torch.zeros(3, 5, 7))
    again = CliRunner().invoke(main, ["quantize", "--int8", "out.pt"])
    assert "is quantized already" in again.stderr


@pytest.mark.slow
def test_compiled_at_the_first_call_also_for_many_models_of_one_class(model: Path) -> None:
    quantize("--int8", "--activations", "dynamic", "--backend", "compile", "model.pt", "-o", "out.pt")
    before, _, _ = computekit.load_module(model)
    for count in range(1, 12):
        module, _, _ = computekit.load_module("out.pt")
        with torch.no_grad():
            assert torch.cosine_similarity(module(inputs(count)), before(inputs(count))).min() > 0.99


@pytest.mark.slow
def test_encoders_keep_their_names_masks_and_lengths(model: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("nncf")
    config = transformers.BertConfig(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128, vocab_size=500
    )
    transformers.BertModel(config).eval().save_pretrained("encoder")
    for backend in ("onnx", "openvino"):
        quantize("--int8", "--backend", backend, "encoder", "-o", backend)
        module, _, _ = computekit.load_module(backend)
        before, _, _ = computekit.load_module("encoder")
        for batch, length in ((1, 9), (3, 20)):
            ids = torch.randint(500, (batch, length), generator=torch.Generator().manual_seed(0))
            mask = torch.ones_like(ids)
            mask[-1, 5:] = 0
            with torch.no_grad():
                ours = module(input_ids=ids, attention_mask=mask).last_hidden_state[-1, :5]
                theirs = before(input_ids=ids, attention_mask=mask).last_hidden_state[-1, :5]
            assert torch.cosine_similarity(ours, theirs).min() > 0.98
            assert module(ids).last_hidden_state.shape == (batch, length, 64)


def test_torchscript_does_not_silently_stay_float(tmp_path: Path) -> None:
    traced = torch.jit.trace(nn.Linear(64, 64), torch.zeros(1, 64))  # type: ignore[no-untyped-call]
    torch.jit.save(traced, tmp_path / "script.pt")  # type: ignore[no-untyped-call]
    told = quantize("--int8", str(tmp_path / "script.pt"), code=1)
    assert "is torchscript, which can be read but not written; computekit convert it first" in told
    assert [path.name for path in tmp_path.iterdir()] == ["script.pt"]


def test_a_program_that_loses_too_much_is_saved_with_status_3(model: Path) -> None:
    words = ["--data", "digits", "--metric", "cosine", "--max-drop", "0"]
    result = CliRunner().invoke(
        main, ["quantize", "--int8", "--backend", "doubling", "model.pt", "-o", "out.pt", *words]
    )
    assert result.exit_code == 3, result.stderr
    assert "Gate missed" in result.stderr
    assert Path("out.factor").exists()


def test_inspect_tells_what_runs_the_file(model: Path) -> None:
    quantize("--int8", "--backend", "doubling", "model.pt", "-o", "out.pt")
    shown = CliRunner().invoke(main, ["inspect", "out.pt"]).stdout
    assert "doubling, from out.factor" in shown


def test_a_device_that_is_slow_at_integers_is_named() -> None:
    from computekit_quantize import device_types

    def device(**rates: float) -> computekit.Hardware:
        return computekit.Hardware("Card", "gpu", rates, 1e9, 1e9, "a sheet")

    slow = device(int8=1e14, fp8=29e14)
    assert "Card computes int8 29 times slower than fp8: --scheme fp8" in device_types.remark(slow, "int")
    assert device_types.remark(slow, "float") == ""
    assert device_types.remark(device(int8=1e15, fp8=1e15), "int") == ""
    assert "knows no fp8 rate of Card; int8 has 1e+15" in device_types.remark(device(int8=1e15), "float")


@pytest.mark.slow
def test_half_programs_of_encoders_give_the_embeddings_of_torch_for_any_batch_length_and_padding(model: Path) -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("nncf")
    config = transformers.BertConfig(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128, vocab_size=500
    )
    torch.manual_seed(0)
    transformers.BertModel(config).eval().save_pretrained("encoder")
    quantize("--scheme", "bf16", "--backend", "openvino", "--allow-noop", "encoder", "-o", "program")
    quantize("--int8", "--backend", "openvino", "--activations", "float", "encoder", "-o", "int8")
    original, half, int8 = (computekit.load_module(name)[0] for name in ("encoder", "program", "int8"))

    def embedding(module: nn.Module, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            hidden = module(input_ids=ids, attention_mask=mask).last_hidden_state
        return (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)

    ids = torch.randint(500, (1, 12), generator=torch.Generator().manual_seed(0))
    for module, near in ((original, 0.99999), (half, 0.9999), (int8, 0.999)):
        alone = embedding(module, ids, torch.ones_like(ids))
        for length in (12, 20, 33):
            padded, mask = torch.zeros(3, length, dtype=torch.long), torch.zeros(3, length, dtype=torch.long)
            padded[0, :12], mask[0, :12] = ids[0], 1
            padded[1:], mask[1:] = 7, 1
            beside = embedding(module, padded, mask)[:1]
            assert torch.cosine_similarity(beside, alone).item() > 0.9999
            assert torch.cosine_similarity(alone, embedding(original, ids, torch.ones_like(ids))).item() > near
