"""Compressed files as floats: read in pieces, and refused where their tensors do not belong together."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from computekit import FileProblem, open_model
from computekit.models import compressed
from computekit.models.float_view import FloatView


@settings(max_examples=40)
@given(
    shape=st.sampled_from([(1, 1), (7, 5), (16, 9), (5, 3, 2, 2), (24, 1), (9, 40)]),
    bits=st.sampled_from([8, 4]),
    group=st.sampled_from([None, 2, 3]),
    zero_points=st.booleans(),
    chunk=st.sampled_from([1, 16, 45, 1 << 19]),
)
def test_pieces_make_the_same_weight(
    shape: tuple[int, ...], bits: int, group: int | None, zero_points: bool, chunk: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:  # fmt: skip
    packed = compressed.quantize(torch.randn(shape), bits, group, zero_points=zero_points)
    path = tmp_path_factory.mktemp("view") / "a.safetensors"
    save_file({name: tensor.contiguous() for name, tensor in packed.store("a.weight")}, path)
    view = FloatView(open_model(path))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compressed, "CHUNK", chunk)
        loaded = view.load("a.weight")
    assert loaded.shape == shape and loaded.is_contiguous()
    assert torch.equal(loaded, packed.dequantize())


@pytest.mark.parametrize("shape", [(0, 8), (8, 0)])
def test_an_empty_weight(shape: tuple[int, int], tmp_path: Path) -> None:
    save_file(
        {"a.weight": torch.ones(shape, dtype=torch.int8), "a.weight_scale": torch.ones(shape[0], 1)},
        tmp_path / "a.safetensors",
    )
    assert FloatView(open_model(tmp_path / "a.safetensors")).load("a.weight").shape == shape


@pytest.mark.parametrize("groups", [0, 5, 9])
def test_scales_that_cut_no_rows_are_damage(groups: int, tmp_path: Path) -> None:
    save_file(
        {"a.weight": torch.ones(8, 8, dtype=torch.int8), "a.weight_scale": torch.ones(8, groups)},
        tmp_path / "a.safetensors",
    )
    with pytest.raises(FileProblem, match=rf"scales of 'a.weight' have shape \[8, {groups}\]"):
        FloatView(open_model(tmp_path / "a.safetensors"))


@pytest.mark.parametrize(
    ("scales", "shape", "message"),
    [(3, [8, 8], "which fits no weight"), (8, [4, 16], "packed values"), (8, [8, 9], "packed values")],
)
def test_packed_values_of_other_rows_are_damage(scales: int, shape: list[int], message: str, tmp_path: Path) -> None:
    tensors = {"w_packed": torch.ones(8, 1, dtype=torch.int32), "w_scale": torch.ones(scales, 1)}
    save_file({**tensors, "w_shape": torch.tensor(shape)}, tmp_path / "a.safetensors")
    with pytest.raises(FileProblem, match=message):
        FloatView(open_model(tmp_path / "a.safetensors"))
