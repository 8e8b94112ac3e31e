"""Weights that are read from their file in pieces: rounded to the same bytes as in one, and never in memory whole."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from computekit.models import ModelFile, TensorInfo, compressed, raw
from computekit_quantize import schemes
from computekit_quantize.plan import Treatment


@st.composite
def _weights(draw: st.DrawFn) -> torch.Tensor:
    """(out, ...) with rows of very different size: zeros and subnormals beside ordinary ones."""
    shape = draw(st.sampled_from([(9, 5), (7, 33), (3, 400), (5, 2, 3, 3), (13, 1), (1, 70)]))
    dtype = draw(st.sampled_from([torch.float32, torch.bfloat16, torch.float16, torch.float64]))
    sizes = draw(st.lists(st.sampled_from([1.0, 0.0, 3e-7, 1e-39]), min_size=shape[0], max_size=shape[0]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1000)))
    rows = torch.tensor(sizes, dtype=torch.float64).reshape(-1, *[1] * (len(shape) - 1))
    return (torch.randn(shape, generator=generator, dtype=torch.float64) * rows).to(dtype)


class _InMemory(ModelFile):
    """One tensor called w, as if it were a file."""

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__(Path("memory"), "memory")
        self._weight = weight

    @property
    def tensors(self) -> dict[str, TensorInfo]:
        return {"w": TensorInfo("w", tuple(self._weight.shape), self._weight.dtype, self._weight.nbytes)}

    def load(self, name: str) -> torch.Tensor:
        return self._weight


@pytest.mark.parametrize("scheme", [s.name for s in schemes.BUILT_IN if s.by_rows])
@settings(max_examples=30)
@given(weight=_weights(), chunk=st.sampled_from([1, 40, 100]))
def test_a_weight_that_is_read_in_pieces_is_rounded_to_the_same_bytes(
    scheme: str, weight: torch.Tensor, chunk: int
) -> None:
    source = _InMemory(weight)
    treatment = Treatment(schemes.get(scheme), schemes.get(scheme).default_group)
    whole = dict(treatment.round(weight, "w").store("w"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compressed, "CHUNK", chunk)
        pieces = dict(treatment.round_stored(source, source.tensors["w"]).store("w"))
    assert {name: (t.dtype, t.shape) for name, t in whole.items()} == {n: (t.dtype, t.shape) for n, t in pieces.items()}
    assert all(raw.bytes_of(whole[name]) == raw.bytes_of(pieces[name]) for name in whole)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("row", [0, 5, 8])
def test_a_value_that_is_not_finite_is_named_with_its_tensor(
    bad: float, row: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compressed, "CHUNK", 10)
    weight = torch.randn(9, 5)
    weight[row, 3] = bad
    source = _InMemory(weight)
    for scheme in (schemes.INT8, schemes.INT4, schemes.FP8):
        with pytest.raises(compressed.NonFinite, match="'w' holds NaN or infinite"):
            Treatment(scheme, scheme.default_group).round_stored(source, source.tensors["w"])


def test_a_scheme_that_does_not_say_that_it_rounds_by_rows_gets_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compressed, "CHUNK", 10)
    seen = []

    def whole(weight: torch.Tensor, bits: int, group: int | None, name: str) -> compressed.QuantizedWeight:
        seen.append(tuple(weight.shape))
        return compressed.quantize(weight, bits, group, name)

    source = _InMemory(torch.randn(9, 5))
    Treatment(schemes.Scheme("mine", "", 8, whole), None).round_stored(source, source.tensors["w"])
    Treatment(schemes.Scheme("mine", "", 8, whole, by_rows=True), None).round_stored(source, source.tensors["w"])
    assert seen == [(9, 5), *[(2, 5)] * 4, (1, 5)]
