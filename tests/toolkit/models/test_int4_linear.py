"""Linear layers on 4-bit weights compute what their dequantized weights would, to the rounding of bfloat16."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from computekit.models import compressed, int4_linear, load_into

needs_kernel = pytest.mark.skipif(not int4_linear._rows(), reason="the order of this CPU's kernel is not known")


def build(
    columns: int, outputs: int, group: int, *, zero_points: bool = False, bias: bool = True
) -> tuple[dict[str, torch.Tensor], nn.Linear, nn.Linear]:
    """A layer in 4 bits as it is stored, one to load it into, and one with its weights in floats."""
    rounded = compressed.quantize(torch.randn(outputs, columns), 4, group, zero_points=zero_points)
    plain = nn.Linear(columns, outputs, bias=bias)
    state = {**dict(rounded.store("weight")), **({"bias": plain.bias.detach()} if bias else {})}
    with torch.no_grad():
        plain.weight.copy_(rounded.dequantize())
    return state, nn.Linear(columns, outputs, bias=bias), plain


def load(module: nn.Module, state: dict[str, torch.Tensor], folder: Path) -> nn.Module:
    path = folder / "model.pt"
    torch.save(state, path)
    return load_into(module, path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("int4")


@given(data=st.data(), zero_points=st.booleans(), bias=st.booleans(), half=st.booleans())
@settings(max_examples=60, deadline=None)
def test_output_is_that_of_the_dequantized_weights(folder: Path, data, zero_points, bias, half) -> None:
    columns = 32 * data.draw(st.integers(1, 8))
    group = data.draw(st.sampled_from([size for size in range(4, columns + 1, 4) if columns % size == 0]))
    outputs, rows = data.draw(st.integers(1, 150)), data.draw(st.sampled_from([1, 2, 16, 17, 32, 33, 70]))
    torch.manual_seed(data.draw(st.integers(0, 99)))
    state, empty, plain = build(columns, outputs, group, zero_points=zero_points, bias=bias)
    module = load(empty, state, folder)
    dtype = torch.bfloat16 if half else torch.float32
    input = torch.randn(rows, 1, columns).to(dtype)
    with torch.inference_mode():
        ours, theirs = module.to(dtype)(input), plain(input.float())
    assert ours.dtype == dtype
    assert ours.shape == theirs.shape
    # each factor and the result is rounded to 8 bits; what they add up to may be small beside them
    scale = input.float().abs() @ plain.weight.abs().t()
    assert ((ours - theirs).abs() <= 2**-7 * (scale + theirs.abs() + (plain.bias.abs() if bias else 0))).all()


@needs_kernel
@pytest.mark.parametrize("group", [16, 24, 32, 64, 96, 192])
@pytest.mark.parametrize("zero_points", [False, True])
def test_sizes_of_groups_that_the_kernel_takes_or_takes_in_two_passes(group: int, zero_points: bool) -> None:
    weight = compressed.quantize(torch.randn(70, 192), 4, group, zero_points=zero_points)
    assert int4_linear.fits(weight)
    assert len(int4_linear.grid(weight)) == (1 if group % 32 == 0 else 2)


@pytest.mark.parametrize(("columns", "group"), [(96, 8), (90, 30), (160, 70)])
def test_sizes_that_the_kernel_does_not_take_are_exact(columns: int, group: int, tmp_path: Path) -> None:
    state, empty, plain = build(columns, 40, group)
    module = load(empty, state, tmp_path)
    input = torch.randn(3, columns)
    with torch.inference_mode():
        torch.testing.assert_close(module(input), plain(input))


def test_double_precision_is_exact(tmp_path: Path) -> None:
    state, empty, plain = build(64, 40, 32)
    input = torch.randn(3, 64, dtype=torch.float64)
    with torch.inference_mode():
        expected = plain.double()(input)
        torch.testing.assert_close(load(empty, state, tmp_path).double()(input), expected, rtol=1e-5, atol=1e-5)


def test_a_cpu_without_the_kernel_computes_in_floats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(int4_linear, "_rows", lambda: 0)
    state, empty, plain = build(64, 40, 32)
    module = load(empty, state, tmp_path)
    input = torch.randn(3, 64)
    with torch.inference_mode():
        torch.testing.assert_close(module(input), plain(input))


@needs_kernel
@pytest.mark.parametrize("rows", [64, 32])
def test_orders_of_blocks_can_be_undone(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(int4_linear, "_rows", lambda: rows)
    values = torch.randint(-8, 8, (100, 36), dtype=torch.int8)
    blocks = int4_linear.to_blocks(values)
    assert torch.equal(int4_linear.from_blocks(blocks, 100), values)
    index = torch.tensor([99, 0, 31, 32, 63, 64, 0])
    assert torch.equal(int4_linear.rows_from_blocks(blocks, index), values[index])


def test_gradients_are_those_of_the_dequantized_weights(tmp_path: Path) -> None:
    state, empty, plain = build(64, 40, 32)
    module = load(empty, state, tmp_path)
    ours = torch.randn(3, 64, requires_grad=True)
    theirs = ours.detach().clone().requires_grad_()
    module(ours).square().sum().backward()
    plain(theirs).square().sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad)
    torch.testing.assert_close(module.bias.grad, plain.bias.grad)


@pytest.mark.parametrize("rows", [8, 64])
def test_nan_stays_in_its_row(rows: int, tmp_path: Path) -> None:
    state, empty, _ = build(64, 40, 16)
    module = load(empty, state, tmp_path)
    input = torch.randn(rows, 64)
    input[1, 3] = torch.nan
    with torch.inference_mode():
        found = module(input).isnan()
    assert found[1].all()
    assert not found[[0, *range(2, rows)]].any()


class Tied(nn.Module):
    """A table that is the output layer too."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(100, 64)
        self.output = nn.Linear(64, 100, bias=False)
        self.output.weight = self.table.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.output(self.table(ids))


@pytest.mark.parametrize("zero_points", [False, True])
def test_a_tied_table_is_in_memory_once_and_in_the_file_once(zero_points: bool, tmp_path: Path) -> None:
    weight = compressed.quantize(torch.randn(100, 64), 4, 16, zero_points=zero_points)
    state = dict([*weight.store("table.weight"), *weight.store("output.weight")])
    module = load(Tied(), state, tmp_path)
    assert module.output.weight_packed is module.table.weight_packed
    ids = torch.tensor([[3, 99, 0, 64]])
    assert torch.equal(module.table(ids), weight.dequantize()[ids])
    assert torch.equal(module.output.weight, weight.dequantize())
    for saved in (module.state_dict(), copy.deepcopy(module).state_dict()):
        assert set(saved) == set(state)
        assert all(torch.equal(saved[name], tensor) for name, tensor in state.items())
        assert saved["table.weight_packed"].data_ptr() == saved["output.weight_packed"].data_ptr()


def test_state_dicts_go_from_layer_to_layer(tmp_path: Path) -> None:
    (first, empty, _), (second, other, _) = (build(64, 40, 32, zero_points=True) for _ in range(2))
    module, target = load(empty, first, tmp_path), load(other, second, tmp_path)
    assert torch.equal(target.state_dict()["weight_packed"], second["weight_packed"])
    target.load_state_dict(module.state_dict())
    assert all(torch.equal(target.state_dict()[name], tensor) for name, tensor in first.items())
    input = torch.randn(3, 64)
    with torch.inference_mode():
        assert torch.equal(target(input), module(input))


@needs_kernel
def test_memory_is_that_of_the_file_and_of_the_kernels_scales() -> None:
    outputs, columns, groups = 256, 512, 16
    state, empty, _ = build(columns, outputs, columns // groups, bias=False)
    weight = compressed.QuantizedWeight.restore("weight", state.__getitem__, compressed.Layout(4))
    from computekit.models.compressed_layers import compress_parameter

    compress_parameter([(empty, "weight")], weight)
    held = sum(tensor.nbytes for tensor in (*empty.parameters(), *empty.buffers()))
    assert held == sum(tensor.nbytes for tensor in state.values()) + 2 * 2 * outputs * groups
