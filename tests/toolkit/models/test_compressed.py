"""Integers and scales: the grid, its error bound, and the layout in a file."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from computekit.models import compressed

DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64]


@st.composite
def weights(draw: st.DrawFn) -> torch.Tensor:
    """Matrices and convolution kernels of any dtype, with rows of very different size, zeros and outliers.

    Some are so small that all their values are subnormal numbers.
    """
    shape = draw(st.lists(st.integers(1, 9), min_size=2, max_size=4))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    weight = torch.randn(shape, generator=generator)
    weight *= 10.0 ** draw(st.sampled_from([0, 0, -7, -40]))
    weight *= 10.0 ** torch.randint(-4, 4, (shape[0], *[1] * (len(shape) - 1)), generator=generator)
    weight[torch.rand(shape, generator=generator) < draw(st.sampled_from([0.0, 0.3, 1.0]))] = 0
    return weight.to(draw(st.sampled_from(DTYPES)))


@given(weights(), st.sampled_from([8, 4]), st.sampled_from([None, 1, 2, 3, 32]), st.booleans())
def test_every_value_comes_back_within_half_a_step(
    weight: torch.Tensor, bits: int, group: int | None, zero_points: bool
) -> None:
    packed = compressed.quantize(weight, bits, group, zero_points=zero_points)
    back = packed.dequantize()
    assert (back.shape, back.dtype) == (weight.shape, weight.dtype)
    columns = weight[0].numel()
    size = compressed.group_size(columns, group)
    step = packed.scale.double().repeat_interleave(size, 1)[:, :columns].reshape(weight.shape)
    # the product of integer and scale is rounded once more, to the weight's own precision
    about = torch.finfo(weight.dtype)
    rounding = about.eps * (weight.double().abs() + about.tiny)
    assert bool(((back.double() - weight.double()).abs() <= step * 0.5001 + rounding).all())


@given(weights(), st.sampled_from([8, 4]), st.sampled_from([None, 2, 3]), st.booleans())
def test_what_is_stored_is_found_and_restored(
    weight: torch.Tensor, bits: int, group: int | None, zero_points: bool
) -> None:
    packed = compressed.quantize(weight, bits, group, zero_points=zero_points)
    stored = dict(packed.store("layer.weight"))
    layout = compressed.Layout(bits, zero_points)
    assert compressed.find(stored) == {"layer.weight": layout}
    assert list(stored) == layout.parts("layer.weight")
    expected = compressed.stored_bytes(weight.shape, weight.itemsize, group, bits, zero_points)
    assert sum(t.nbytes for t in stored.values()) == expected
    fresh = {name: torch.empty(t.shape, dtype=t.dtype).copy_(t) for name, t in stored.items()}  # strides of a file
    back = compressed.QuantizedWeight.restore("layer.weight", fresh.__getitem__, layout)
    assert torch.equal(back.values, packed.values)
    assert torch.equal(back.dequantize(), packed.dequantize())


@given(weights(), st.sampled_from([None, 2, 3]))
def test_float8_keeps_three_bits_of_every_value_that_is_not_tiny(weight: torch.Tensor, group: int | None) -> None:
    packed = compressed.quantize_float8(weight, group)
    stored = dict(packed.store("w"))
    assert compressed.find(stored) == {"w": compressed.Layout(8)}
    assert sum(t.nbytes for t in stored.values()) == compressed.stored_bytes(weight.shape, weight.itemsize, group)
    scale = packed.scale.double().repeat_interleave(compressed.group_size(weight[0].numel(), group), 1)
    step = scale[:, : weight[0].numel()].reshape(weight.shape) * 2**-9  # between the smallest values of the type
    error = (packed.dequantize().double() - weight.double()).abs()
    about = torch.finfo(weight.dtype)
    rounding = about.eps * (weight.double().abs() + about.tiny)
    assert bool((error <= torch.maximum(weight.double().abs() / 16, step / 2) * 1.001 + rounding).all())


def test_long_weights_are_worked_on_in_pieces_with_the_same_result(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.randn(37, 50)
    whole = compressed.quantize(weight)
    monkeypatch.setattr(compressed, "CHUNK", 120)
    pieces = compressed.quantize(weight)
    assert torch.equal(whole.values, pieces.values)
    assert torch.equal(whole.scale, pieces.scale)


@pytest.mark.parametrize(("columns", "edge"), [(2, 0.0), (380, 0.0), (381, 0.5), (4000, 0.5)])
def test_long_rows_reach_half_a_step_beyond_the_grid(columns: int, edge: float) -> None:
    weight = torch.zeros(2, columns)
    weight[:, :2] = torch.tensor([[1.0, -0.9], [0.5, -2.0]])
    packed = compressed.quantize(weight)
    assert packed.values[:, :2].tolist() == ([[127, -114], [32, -128]] if edge == 0 else [[127, -115], [32, -128]])
    assert packed.scale.flatten().tolist() == pytest.approx([1 / (127 + edge), 2 / (128 + edge)])


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_non_finite_weights_are_named(bad: float) -> None:
    with pytest.raises(compressed.NonFinite, match=r"'head\.weight'"):
        compressed.quantize(torch.tensor([[1.0, 2.0], [bad, 1.0]]), name="head.weight")
    with pytest.raises(compressed.NonFinite, match=r"'head\.weight'"):
        compressed.quantize_float8(torch.tensor([[1.0, 2.0], [bad, 1.0]]), name="head.weight")


def test_group_sizes_are_as_even_as_they_can_be() -> None:
    assert [compressed.group_size(576, g) for g in (None, 32, 128, 1000)] == [576, 32, 116, 576]


def test_int8_beside_something_else_is_not_taken_for_a_weight() -> None:
    tensors = {"a": torch.zeros(4, 3, dtype=torch.int8), "a_scale": torch.ones(5, 1), "logit_scale": torch.ones(1, 1)}
    assert compressed.find(tensors) == {}


def test_packed_layout_is_that_of_compressed_tensors() -> None:
    helpers = pytest.importorskip("compressed_tensors.compressors.pack_quantized.helpers")
    values = torch.randint(-8, 8, (5, 27), dtype=torch.int8)
    assert torch.equal(compressed.pack(values), helpers.pack_to_int32(values, 4))
    stored = dict(compressed.QuantizedWeight(values, torch.ones(5, 3), 4, values[:, :3]).store("w"))
    assert torch.equal(stored["w_zero_point"], helpers.pack_to_int32(values[:, :3], 4, packed_dim=0))


def test_error_is_no_worse_than_torchao() -> None:
    quantization = pytest.importorskip("torchao.quantization")
    torch.manual_seed(0)
    for dtype, columns in product((torch.float32, torch.bfloat16), (8, 40, 200, 380, 381, 1000)):
        layer = torch.nn.Linear(columns, 300, dtype=dtype)
        weight = layer.weight.detach().clone()
        quantization.quantize_(layer, quantization.Int8WeightOnlyConfig(version=2))
        packed = compressed.quantize(weight)
        grids = {  # before the product is rounded to the weight's own type, which is noise common to both
            "ours": packed.values.double() * packed.scale.double(),
            "theirs": layer.weight.qdata.double() * layer.weight.scale.double(),
        }
        error = {whose: (grid - weight.double()).square().mean() for whose, grid in grids.items()}
        # with 380 columns both grids are equally good, and chance decides
        assert error["ours"] <= 1.005 * error["theirs"], (dtype, columns)
