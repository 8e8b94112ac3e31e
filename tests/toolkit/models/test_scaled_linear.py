"""Linear layers on 8-bit tensor cores; on the CPU only float8 has a kernel."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from computekit.models import compressed, scaled_linear
from computekit.models.compressed_layers import compress_parameter


def weight_and_input(rows: int, device: str = "cpu") -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    weight, values = torch.randn(48, 64, generator=generator), torch.randn(2, rows, 64, generator=generator)
    values[0, 0] *= 100  # a token of another size must not cost the others their precision
    return weight.to(device), values.to(device)


@pytest.mark.parametrize("rows", [1, 3, 40])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_float8_layers_compute_about_the_same(rows: int, dtype: torch.dtype) -> None:
    weight, values = weight_and_input(rows)
    bias = torch.randn(48)
    small = compressed.quantize_float8(weight)
    output = scaled_linear.linear(values.to(dtype), small.values, small.scale, bias)
    assert output.dtype == dtype
    assert output.shape == (2, rows, 48)
    assert F.cosine_similarity(output.float(), F.linear(values, weight, bias), dim=-1).min() > 0.99


def test_a_token_does_not_depend_on_its_neighbours() -> None:
    weight, values = weight_and_input(8)
    small = compressed.quantize_float8(weight)
    alone = scaled_linear.linear(values[1:, 3:4], small.values, small.scale, None)
    beside = scaled_linear.linear(values, small.values, small.scale, None)
    assert torch.equal(alone[0, 0], beside[1, 3])


def test_a_layer_uses_the_kernel_only_where_it_fits() -> None:
    for features, fits in ((48, True), (50, False)):
        layer = nn.Linear(64, features)
        expected = layer(inputs := torch.randn(4, 64, generator=torch.Generator().manual_seed(1)))
        small = compressed.quantize_float8(layer.weight.detach())
        assert scaled_linear.fits(inputs, small.values) == fits
        compress_parameter([(layer, "weight")], small, "dynamic")
        assert F.cosine_similarity(layer(inputs), expected, dim=1).min() > 0.99


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 40])
@pytest.mark.parametrize("scheme", ["int8", "fp8"])
def test_tensor_cores_compute_about_the_same(rows: int, scheme: str) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    weight, values = weight_and_input(rows, "cuda")
    make = compressed.quantize if scheme == "int8" else compressed.quantize_float8
    small = make(weight.cpu())
    if not scaled_linear.fits(values, small.values.cuda()):
        pytest.skip("this device has no kernel for it")
    output = scaled_linear.linear(values.bfloat16(), small.values.cuda(), small.scale.cuda(), None)
    assert F.cosine_similarity(output.float(), F.linear(values, weight), dim=-1).min() > 0.99
