"""The integer kernels compute what rounded activations and weights would in floating point, to within one step."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from torch import nn

from computekit.models import compressed, int8_static
from computekit.models.int8_program import _MaxPool
from computekit.models.int8_static import Activation, Affine, IntegerLayer

pytestmark = pytest.mark.skipif(bool(int8_static.available()), reason=int8_static.available())

CONVS = {1: (nn.Conv1d, nn.BatchNorm1d), 2: (nn.Conv2d, nn.BatchNorm2d), 3: (nn.Conv3d, nn.BatchNorm3d)}


def norm_of(kind: type[nn.Module], channels: int) -> nn.Module:
    """A BatchNorm with gains of both signs."""
    norm = kind(channels).eval()
    with torch.no_grad():
        for tensor in (norm.weight, norm.bias, norm.running_mean):
            tensor.normal_()
        norm.running_var.uniform_(0.5, 2)
    return norm


def grid_of(x: torch.Tensor) -> Affine:
    return Affine.over(x.min().item(), x.max().item())


def line(**words):
    """An example: one channel in a long line, which has a path of its own."""
    plain = {
        "dimensions": 1, "groups": (1, 4, 1), "kernel": 9, "stride": 2, "padding": 2, "dilation": 1, "bias": True,
        "with_norm": True, "with_sum": False, "activation": "relu", "in_integers": True, "layout": True,
    }  # fmt: skip
    return example(**{**plain, "seed": 0, **words})


@line()
@line(stride=1, padding="same", dilation=2)
@line(with_sum=True, stride=3)
@line(in_integers=False, activation="swish", bias=False, with_norm=False)
@settings(deadline=None, max_examples=60)
@given(
    dimensions=st.sampled_from([1, 2, 2, 2, 3]),
    groups=st.sampled_from([(3, 5, 1), (4, 8, 2), (6, 6, 6), (4, 12, 4), (16, 16, 1), (1, 4, 1)]),
    kernel=st.integers(1, 4),
    stride=st.integers(1, 3),
    padding=st.sampled_from([0, 1, 2, "same", "valid"]),
    dilation=st.integers(1, 2),
    bias=st.booleans(),
    with_norm=st.booleans(),
    with_sum=st.booleans(),
    activation=st.sampled_from(["none", "relu", "hardtanh", "hardswish", "swish"]),
    in_integers=st.booleans(),
    layout=st.booleans(),
    seed=st.integers(0, 999),
)
def test_convolution(
    dimensions,
    groups,
    kernel,
    stride,
    padding,
    dilation,
    bias,
    with_norm,
    with_sum,
    activation,
    in_integers,
    layout,
    seed,
) -> None:
    assume(padding != "same" or stride == 1)
    assume(dimensions < 3 or activation == "none")  # for which there is no kernel
    torch.manual_seed(seed)
    kind, norm_kind = CONVS[dimensions]
    channels, out, count = groups
    conv = kind(channels, out, kernel, stride, padding, dilation, count, bias)
    shape = [2, channels, *([20, 8, 10][:dimensions] if dimensions < 3 else [7, 8, 7])]
    x = torch.randn(shape) * 3 + 1
    weight = compressed.quantize(conv.weight.detach())
    norm = norm_of(norm_kind, out) if with_norm else None
    functions = {"none": lambda y: y, "relu": F.relu, "hardtanh": F.relu6, "hardswish": F.hardswish, "swish": F.silu}
    input = grid_of(x)
    rounded = input.dequantize(input.quantize(x))
    with torch.no_grad():
        conv.double()
        conv.weight.copy_(weight.dequantize().double())
        y = conv(rounded.double())
        y = norm.double()(y) if norm is not None else y
        use_sum = with_sum and in_integers and dimensions < 3 and activation in ("none", "relu")
        addend = torch.randn(y.shape) * 2 - 0.5
        add_grid = grid_of(addend)
        added = add_grid.quantize(addend)
        y = functions[activation](y + add_grid.dequantize(added) if use_sum else y)
    result = grid_of(y) if in_integers else None
    post = Activation(activation, (0.0, 6.0) if activation == "hardtanh" else ())
    layer = IntegerLayer(
        conv,
        weight.values,
        weight.scale,
        input,
        result,
        norm=norm,
        addend=add_grid if use_sum else None,
        activation=post,
    )
    integers = input.quantize(x)
    if layout:
        integers = integers.contiguous()
    ours = layer(integers, added) if use_sum else layer(integers)
    assert ours.shape == y.shape
    if result is None:
        torch.testing.assert_close(ours, y.float(), rtol=1e-4, atol=1e-4 * float(y.abs().max()))
    else:
        assert ours.dtype == torch.uint8
        assert int((ours.int() - result.quantize(y).int()).abs().max()) <= 1


@settings(deadline=None)
@given(
    shape=st.sampled_from([(7,), (3, 7), (2, 3, 7), (1, 1), (2, 5, 33)]),
    out=st.integers(1, 40),
    bias=st.booleans(),
    activation=st.sampled_from([
        ("none", "", lambda y: y), ("relu", "", F.relu), ("gelu", "none", F.gelu), ("swish", "", F.silu),
        ("gelu", "tanh", lambda y: F.gelu(y, approximate="tanh")),
    ]),
    in_integers=st.booleans(),
    seed=st.integers(0, 999),
)  # fmt: skip
def test_linear(shape, out, bias, activation, in_integers, seed) -> None:
    torch.manual_seed(seed)
    name, algorithm, function = activation
    x = torch.randn(shape) * 2 + 0.3
    linear = nn.Linear(shape[-1], out, bias)
    weight = compressed.quantize(linear.weight.detach())
    input = grid_of(x)
    with torch.no_grad():
        y = F.linear(input.dequantize(input.quantize(x)).double(), weight.dequantize().double())
        y = function(y if linear.bias is None else y + linear.bias)
    result = grid_of(y) if in_integers else None
    layer = IntegerLayer(linear, weight.values, weight.scale, input, result, activation=Activation(name, (), algorithm))
    ours = layer(input.quantize(x))
    if result is None:
        torch.testing.assert_close(ours, y.float(), rtol=1e-4, atol=1e-4 * float(y.abs().max()))
    else:
        assert int((ours.int() - result.quantize(y).int()).abs().max()) <= 1


@given(st.floats(-1e4, 1e4), st.floats(-1e4, 1e4), st.integers(0, 99))
def test_a_grid_holds_zero_and_its_ends(one: float, other: float, seed: int) -> None:
    low, high = min(one, other), max(one, other)
    grid = Affine.over(low, high)
    zero = torch.zeros(1)
    assert torch.equal(grid.dequantize(grid.quantize(zero)), zero)
    x = torch.rand(50, generator=torch.Generator().manual_seed(seed)) * (high - low) + low
    error = (grid.dequantize(grid.quantize(x)) - x).abs().max().item()
    assert error <= grid.scale * 1.01 or high - low < 1e-20
    stored = dict(grid.store("input"))
    assert Affine.restore(stored["input_scale"], stored["input_zero_point"]) == grid


def test_values_outside_the_grid_are_clipped() -> None:
    grid = Affine.over(-1.0, 1.0)
    assert grid.quantize(torch.tensor([-1e30, -5.0, 5.0, 1e30])).tolist() == [0, 0, 255, 255]


def test_the_kernel_repeats_an_addend_that_is_smaller() -> None:
    torch.manual_seed(0)
    conv = nn.Conv2d(4, 6, 3, padding=1)
    weight, x, addend = compressed.quantize(conv.weight.detach()), torch.randn(2, 4, 5, 5), torch.randn(1, 6, 1, 1)
    input, grid = grid_of(x), grid_of(addend)
    rounded = grid.dequantize(grid.quantize(addend))
    with torch.no_grad():
        conv.weight.copy_(weight.dequantize())
        y = F.relu(conv(input.dequantize(input.quantize(x))) + rounded)
    layer = IntegerLayer(
        conv, weight.values, weight.scale, input, grid_of(y), addend=grid, activation=Activation("relu")
    )
    ours = layer(input.quantize(x), grid.quantize(addend))
    assert int((ours.int() - grid_of(y).quantize(y).int()).abs().max()) <= 1


@pytest.mark.parametrize(
    ("layer", "supported"),
    [
        (nn.Linear(2, 2), True),
        (nn.Conv1d(2, 2, 1), True),
        (nn.Conv3d(2, 2, 1), True),
        (nn.ConvTranspose2d(2, 2, 1), False),
        (nn.Conv2d(2, 2, 1, padding_mode="reflect"), False),
        (nn.utils.parametrizations.weight_norm(nn.Linear(2, 2)), False),
        (nn.LSTM(2, 2), False),
        (nn.Bilinear(2, 2, 2), False),
    ],
)
def test_which_layers_the_kernels_can_replace(layer: nn.Module, supported: bool) -> None:
    assert int8_static.supports(layer) is supported


@pytest.mark.parametrize("ceil", [False, True])
@pytest.mark.parametrize(("kernel", "stride"), [(2, None), (3, 2), ((3, 2), 1), (2, 3)])
@pytest.mark.parametrize(("padding", "dilation"), [(0, 1), (1, 1), (1, 2)])
@pytest.mark.parametrize("shape", [(2, 3, 40, 17), (3, 9, 8)])
def test_max_pooling_of_bytes(shape, padding, dilation, kernel, stride, ceil: bool) -> None:
    x = torch.randint(0, 256, shape, dtype=torch.uint8)
    pooled = F.max_pool2d(x.float(), kernel, stride, padding, dilation, ceil)
    assert torch.equal(_MaxPool(2, kernel, stride, padding, dilation, ceil)(x).float(), pooled)
