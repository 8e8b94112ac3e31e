"""Ranges from histograms: all of the values, or what each observer thinks is worth a step."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from computekit.models.int8_static import Affine
from computekit_quantize.observers import RANGES, Histogram


def shown(*batches: torch.Tensor) -> Histogram:
    histogram = Histogram()
    for batch in batches:
        histogram(batch)
    return histogram


def squared_error(x: torch.Tensor, low: float, high: float) -> float:
    grid = Affine.over(low, high)
    return float((grid.dequantize(grid.quantize(x)) - x).square().sum())


@settings(deadline=None)
@given(st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=5), st.integers(1, 4), st.integers(0, 99))
def test_nothing_is_lost_when_the_range_grows(scales: list[float], size: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    batches = [torch.randn(3, 50 * size, generator=generator) * scale for scale in scales]
    values = torch.cat([batch.flatten() for batch in batches])
    histogram = shown(*batches)
    assert (histogram.low, histogram.high) == (min(values.min().item(), 0.0), max(values.max().item(), 0.0))
    if values.any():
        assert histogram.counts.sum() >= values.numel() - sum(b.numel() for b in batches if not b.any())


@pytest.mark.parametrize("name", RANGES)
def test_zero_is_in_every_range_and_nothing_beyond_the_values(name: str) -> None:
    torch.manual_seed(0)
    for x in (torch.randn(20000), torch.randn(20000).relu(), -torch.rand(5000), torch.zeros(5), torch.ones(3)):
        low, high = RANGES[name](shown(x))
        assert min(x.min().item(), 0) <= low <= 0 <= high <= max(x.max().item(), 0)


def test_an_outlier_takes_the_steps_of_min_max_alone() -> None:
    torch.manual_seed(0)
    x = torch.cat([torch.randn(200_000), torch.tensor([100.0])])
    seen = shown(x)
    assert RANGES["min-max"](seen)[1] == 100
    assert RANGES["percentile"](seen)[1] < 6
    assert RANGES["entropy"](seen)[1] < 60


def test_the_squared_error_is_least_with_the_observer_that_is_named_after_it() -> None:
    torch.manual_seed(0)
    for x in (torch.randn(50_000), torch.randn(50_000).relu() ** 2, torch.randn(50_000) ** 3):
        seen = shown(x)
        errors = {name: squared_error(x, *choose(seen)) for name, choose in RANGES.items()}
        assert errors["mse"] <= 1.02 * min(errors.values())
