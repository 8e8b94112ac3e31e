"""The scheme int4-mse: less squared error than plain rounding, in the same layout and the same bytes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from computekit.models import compressed
from computekit_quantize import mse


@given(st.integers(0, 999), st.sampled_from([(3, 5), (4, 70), (2, 3, 5, 5)]), st.sampled_from([None, 8, 32]))
def test_error_is_never_larger(seed: int, shape: tuple[int, ...], group: int | None) -> None:
    torch.manual_seed(seed)
    weight = torch.randn(shape) * 10.0 ** torch.randint(-6, 6, (shape[0], *[1] * (len(shape) - 1)))
    weight[torch.rand(shape) < 0.2] = 0
    plain, best = compressed.quantize(weight, 4, group), mse.quantize(weight, 4, group, "w")
    assert best.values.min() >= -8
    assert best.values.max() <= 7
    rows = [(q.dequantize() - weight).double().flatten(1).square().sum(1) for q in (plain, best)]
    assert bool((rows[1] <= rows[0] * 1.00001).all())


def test_error_is_clearly_smaller_on_normal_weights() -> None:
    torch.manual_seed(0)
    weight = torch.randn(256, 256)
    plain, best = (
        (q.dequantize() - weight).square().mean()
        for q in (compressed.quantize(weight, 4, 32), mse.quantize(weight, 4, 32, "w"))
    )
    assert best < 0.9 * plain


def test_zeros_stay_zeros_and_nan_is_named() -> None:
    assert torch.equal(mse.quantize(torch.zeros(2, 8), 4, 4, "w").dequantize(), torch.zeros(2, 8))
    with pytest.raises(compressed.NonFinite, match="'w'"):
        mse.quantize(torch.full((2, 8), float("nan")), 4, 4, "w")
