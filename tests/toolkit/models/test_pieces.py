"""Tensors read in pieces: the same values as the whole, whatever kind of file they are in."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from computekit import FileProblem, open_model
from computekit.models.base import ModelFile

from . import samples

ODD = {
    "a": torch.randn(7, 5),
    "transposed": torch.randn(6, 4).T,
    "cut": torch.randn(9, 8)[2:7],
    "gaps": torch.randn(9, 8)[:, ::2],
    "one": torch.tensor(2.5, dtype=torch.bfloat16),
    "none": torch.zeros(0, 3),
    "bytes": torch.arange(11, dtype=torch.uint8),
    "mask": torch.tensor([[True], [False]]),
    "expanded": torch.ones(1, 3).expand(4, 3),
}


def check(source: ModelFile) -> None:
    for name, info in source.tensors.items():
        whole = source.load(name)
        for count in (1, 4, 5, 1000):
            pieces = [piece.clone() for piece in source.pieces(name, count)]  # each is gone when the next comes
            assert all(piece.ndim == 1 and 0 < len(piece) <= count for piece in pieces)
            assert len(pieces) == -(-info.numel // count)
            joined = torch.cat([torch.empty(0, dtype=info.dtype), *pieces])
            assert joined.dtype == whole.dtype and torch.equal(joined.reshape(info.shape), whole)


@pytest.mark.parametrize("kind", samples.KINDS)
def test_every_kind_of_file(kind: str, tmp_path: Path) -> None:
    pytest.importorskip({"gguf": "gguf", "onnx": "onnx"}.get(kind, "torch"))
    check(open_model(samples.make(kind, tmp_path / "a")))


def test_odd_tensors(tmp_path: Path) -> None:
    torch.save(ODD, tmp_path / "a.pt")
    check(open_model(tmp_path / "a.pt"))
    save_file({name: tensor.contiguous() for name, tensor in ODD.items()}, tmp_path / "a.safetensors")
    check(open_model(tmp_path / "a.safetensors"))


def test_a_file_that_became_shorter_is_an_error(tmp_path: Path) -> None:
    save_file({"a": torch.ones(100)}, tmp_path / "a.safetensors")
    source = open_model(tmp_path / "a.safetensors")
    with (tmp_path / "a.safetensors").open("r+b") as stream:
        stream.truncate(300)
    with pytest.raises(FileProblem, match="ends in the middle"):
        list(source.pieces("a", 8))
