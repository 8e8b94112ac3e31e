"""The integer product: exact but for rounding, and the same for a token whatever stands beside it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from hypothesis import example, given
from hypothesis import strategies as st

from computekit import load_into
from computekit.cli import main
from computekit.models import compressed, int8_linear
from computekit.models.compressed_layers import compress_parameter


def layer(out: int, columns: int, seed: int) -> tuple[compressed.QuantizedWeight, torch.Tensor]:
    torch.manual_seed(seed)
    return compressed.quantize(torch.randn(out, columns)), torch.randn(out)


SIZES = st.integers(0, 40), st.integers(1, 70), st.integers(1, 200)


@example(rows=3, out=2, columns=1, with_bias=False, seed=0)
@given(*SIZES, st.booleans(), st.integers(0, 99))
def test_result_is_that_of_rounded_inputs(rows: int, out: int, columns: int, with_bias: bool, seed: int) -> None:
    weight, bias = layer(out, columns, seed)
    x = torch.randn(rows, columns) * 10.0 ** torch.randint(-3, 3, (rows, 1))
    shift = bias if with_bias else None
    ours = int8_linear.linear(x, weight.values, weight.scale, shift)
    exact = torch.nn.functional.linear(x, weight.dequantize(), shift)
    step = (x.amax(1, keepdim=True) - x.amin(1, keepdim=True)) / 255  # every input moves by half a step at most
    bound = 0.5 * step * weight.dequantize().abs().sum(1) + 1e-4 * (exact.abs() + 1)
    assert bool(((ours - exact).abs() <= bound).all())


@given(*SIZES, st.integers(0, 99))
def test_rounded_inputs_are_what_the_layer_multiplies(rows: int, out: int, columns: int, seed: int) -> None:
    weight, bias = layer(out, columns, seed)
    x = torch.randn(rows, columns)
    x[::2, :1] *= 300.0  # such rows are rounded twice
    ours = int8_linear.linear(x, weight.values, weight.scale, bias)
    exact = torch.nn.functional.linear(int8_linear.rounded(x).double(), weight.dequantize().double(), bias.double())
    torch.testing.assert_close(ours.double(), exact, rtol=1e-4, atol=1e-4 * (float(x.abs().amax()) if rows else 1.0))


@given(*SIZES, st.integers(0, 99))
def test_integers_are_multiplied_exactly(rows: int, out: int, columns: int, seed: int) -> None:
    weight, bias = layer(out, columns + 1, seed)
    x = torch.randint(-128, 128, (rows, columns + 1))
    x[:, 0], x[:, -1] = -128, 127  # the ends of a grid whose steps are 1
    ours = int8_linear.linear(x.float(), weight.values, weight.scale, bias)
    exact = (x @ weight.values.long().T).double() * weight.scale.flatten().double() + bias.double()
    torch.testing.assert_close(ours.double(), exact, rtol=1e-5, atol=1e-5)


def test_without_the_kernel_that_rounds_the_result_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    weight, bias = layer(24, 70, 0)
    x = torch.randn(30, 70)
    x[::3, 4] = 500.0
    ours = int8_linear.linear(x, weight.values, weight.scale, bias)
    monkeypatch.setattr(int8_linear, "_ROUND", None)
    torch.testing.assert_close(int8_linear.linear(x, weight.values, weight.scale, bias), ours, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_what_is_not_finite_shows_in_its_row_alone(value: str) -> None:
    weight, bias = layer(24, 64, 0)
    x = torch.randn(5, 64)
    clean = int8_linear.linear(x, weight.values, weight.scale, bias)
    x[2, 3] = float(value)
    ours = int8_linear.linear(x, weight.values, weight.scale, bias)
    assert bool(ours[2].isnan().all())
    assert torch.equal(ours[[0, 1, 3, 4]], clean[[0, 1, 3, 4]])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_token_does_not_depend_on_its_neighbours(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    weight, bias = layer(24, 16, 0)
    x = torch.randn(9, 5, 16).to(dtype)
    x[3] *= 1000
    together = int8_linear.linear(x, weight.values, weight.scale, bias)
    assert (together.shape, together.dtype) == ((9, 5, 24), dtype)
    alone = torch.stack([int8_linear.linear(one, weight.values, weight.scale, bias) for one in x])
    assert torch.equal(together, alone)
    monkeypatch.setattr(int8_linear, "_CACHE", 24 * 7)
    assert torch.equal(together, int8_linear.linear(x, weight.values, weight.scale, bias))


def test_rows_that_outliers_dominate_keep_the_rest_of_their_values() -> None:
    weight, _ = layer(24, 64, 0)
    x = torch.randn(20, 64)
    x[4:7, 3] = 3000.0  # without a second rounding, everything else would become zero
    x[12] = 0.0
    x[12, 5] = -7.0
    ours = int8_linear.linear(x, weight.values, weight.scale, None)
    exact = x @ weight.dequantize().T
    ours[4:7] -= weight.dequantize()[:, 3] * 3000.0
    exact[4:7] -= weight.dequantize()[:, 3] * 3000.0
    assert torch.cosine_similarity(ours[4:7], exact[4:7]).min() > 0.99
    torch.testing.assert_close(ours[12], exact[12])
    alone = torch.stack([int8_linear.linear(row, weight.values, weight.scale, None) for row in x])
    assert torch.equal(alone, int8_linear.linear(x, weight.values, weight.scale, None))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("out", "columns"), [(1, 32), (3, 64), (17, 96), (64, 32), (192, 576)])
def test_single_tokens_are_multiplied_by_the_rounded_weight(out: int, columns: int, dtype: torch.dtype) -> None:
    weight, bias = layer(out, columns, 0)
    for count in (1, 2, 5, 8):
        x = torch.randn(count, 1, columns, dtype=dtype)
        assert int8_linear.generates(x)
        for shift in (bias, None):
            ours = int8_linear.weight_only(x, weight.values, weight.scale, shift)
            exact = torch.nn.functional.linear(x.float(), weight.dequantize(), shift)
            assert (ours.shape, ours.dtype) == ((count, 1, out), dtype)
            largest = x.float().abs().sum(-1, keepdim=True) * weight.dequantize().abs().max()
            assert bool(((ours.float() - exact).abs() <= largest / 100 + 0.01 * (exact.abs() + 1)).all())


@pytest.mark.parametrize("shape", [(32,), (1, 32), (1, 2, 32), (9, 1, 32), (1, 1, 31), (1, 1, 48), (0, 1, 32)])
def test_what_is_no_single_token_of_few_sequences_is_rounded(shape: tuple[int, ...]) -> None:
    assert not int8_linear.generates(torch.zeros(shape))


def test_steps_of_generation_agree_with_the_whole_text() -> None:
    """The layer takes another way for one token than for several: they differ by the rounding of the input."""
    module = torch.nn.Sequential(torch.nn.Linear(96, 64))
    weight = compressed.quantize(module[0].weight.detach())
    compress_parameter([(module[0], "weight")], weight, "dynamic")
    x = torch.randn(2, 6, 96)
    with torch.no_grad():
        whole = module(x)
        steps = torch.cat([module(x[:, i : i + 1]) for i in range(6)], 1)
    assert torch.cosine_similarity(whole, steps, dim=-1).min() > 0.9995


def test_gradients_pass_through_the_dequantized_weight() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(96, 64))
    weight = compressed.quantize(module[0].weight.detach())
    compress_parameter([(module[0], "weight")], weight, "dynamic")
    x = torch.randn(3, 96, requires_grad=True)
    module(x).sum().backward()
    torch.testing.assert_close(x.grad, weight.dequantize().sum(0).expand(3, 96))


def test_zeros_and_empty_batches_are_fine() -> None:
    weight, bias = layer(4, 3, 0)
    assert torch.equal(int8_linear.linear(torch.zeros(2, 3), weight.values, weight.scale, bias), bias.expand(2, 4))
    assert int8_linear.linear(torch.zeros(0, 3), weight.values, weight.scale, bias).shape == (0, 4)


def test_a_file_remembers_that_it_computes_in_integers(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64))
    torch.save(model.state_dict(), tmp_path / "m.pt")
    result = CliRunner().invoke(main, ["quantize", "--int8", "--activations", "dynamic", str(tmp_path / "m.pt")])
    assert result.exit_code == 0, result.stderr
    fresh = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64))
    integers = load_into(fresh, tmp_path / "m-int8.pt")
    x = torch.randn(8, 64)
    with torch.inference_mode():
        hidden = int8_linear.linear(x, *(integers[0]._parameters["weight"], integers[0].weight_scale), model[0].bias)
        ours = int8_linear.linear(
            hidden.relu(), *(integers[2]._parameters["weight"], integers[2].weight_scale), model[2].bias
        )
        assert torch.equal(integers(x), ours)
        assert torch.cosine_similarity(ours, model(x)).min() > 0.999


def test_dynamic_activations_need_a_scale_per_row(tmp_path: Path) -> None:
    torch.save({"fc.weight": torch.randn(64, 64)}, tmp_path / "m.pt")
    result = CliRunner().invoke(main, ["quantize", "--int4", "--activations", "dynamic", str(tmp_path / "m.pt")])
    assert result.exit_code == 2
    assert "--int8" in result.stderr
