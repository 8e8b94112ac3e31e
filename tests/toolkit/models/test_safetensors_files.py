"""safetensors files: read by offset, written as a stream, opened by the safetensors library."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file, save_model
from torch import nn

from computekit import FileProblem, open_model, rewrite

TENSORS = {
    "a.weight": torch.arange(12.0).reshape(3, 4),
    "a.bias": torch.ones(3, dtype=torch.float16),
    "bytes": torch.arange(7, dtype=torch.uint8),
    "mask": torch.tensor([[True], [False]]),
    "scalar": torch.tensor(2.5, dtype=torch.bfloat16),
    "empty": torch.zeros(0, 3),
    "steps": torch.tensor([2**40]),
}


def same(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> bool:
    return set(found) == set(wanted) and all(
        found[n].dtype == t.dtype and torch.equal(found[n], t) for n, t in wanted.items()
    )


@pytest.mark.parametrize("change", [False, True])
def test_copies_are_what_the_library_reads(change: bool, tmp_path: Path) -> None:
    save_file(TENSORS, tmp_path / "a.safetensors", {"format": "pt", "author": "me"})
    source = open_model(tmp_path / "a.safetensors")
    rewrite(source, tmp_path / "b", lambda info, load: [(info.name, load())] if change else None, {"x": {"y": 1}})
    assert same(load_file(tmp_path / "b"), TENSORS)
    again = open_model(tmp_path / "b")
    assert again.metadata == {"x": {"y": 1}}
    assert (tmp_path / "b").stat().st_size < (tmp_path / "a.safetensors").stat().st_size + 40


def test_more_tensors_than_the_header_was_planned_for(tmp_path: Path) -> None:
    save_file({"a": torch.ones(1000)}, tmp_path / "a.safetensors")
    many = [(f"a.{i}.with.a.rather.long.name", torch.full((3 * i,), float(i))) for i in range(300)]
    rewrite(open_model(tmp_path / "a.safetensors"), tmp_path / "b", lambda info, load: many)
    assert same(load_file(tmp_path / "b"), dict(many))


def test_all_tensors_are_aligned(tmp_path: Path) -> None:
    save_file(TENSORS, tmp_path / "a.safetensors")
    rewrite(open_model(tmp_path / "a.safetensors"), tmp_path / "b", lambda info, load: None)
    raw = (tmp_path / "b").read_bytes()
    length = int.from_bytes(raw[:8], "little")
    for name, line in json.loads(raw[8 : 8 + length]).items():
        if name != "__metadata__":
            assert (8 + length + line["data_offsets"][0]) % TENSORS[name].element_size() == 0


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.emb, self.head = nn.Embedding(9, 4), nn.Linear(4, 9, bias=False)
        self.head.weight = self.emb.weight


def test_ties_as_the_library_notes_them(tmp_path: Path) -> None:
    save_model(Tied(), str(tmp_path / "a.safetensors"))
    source = open_model(tmp_path / "a.safetensors")
    assert source.tensors["emb.weight"].storage == source.tensors["head.weight"].storage
    rewrite(source, tmp_path / "b", lambda info, load: [(info.name, load().half())])
    again = open_model(tmp_path / "b")
    assert again.tensors["emb.weight"].storage == again.tensors["head.weight"].storage
    assert len(load_file(tmp_path / "b")) == 1


def with_header(path: Path, header: Any, data: bytes = b"\0" * 16) -> Path:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(raw).to_bytes(8, "little") + raw + data)
    return path


def line(begin: int, end: int, shape: list[Any], dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


@pytest.mark.parametrize(
    "header",
    [
        {"a": line(0, 32, [8])},
        {"a": line(0, 8, [2])},
        {"a": line(0, 16, [4]), "b": line(8, 16, [2])},
        {"a": line(-16, 0, [4])},
        {"a": line(0, 16, [2**63])},
        {"a": line(0, 16, [2**32, 2**32])},
        {"a": line(0, 16, [-4])},
        {"a": line(0, 16, [4.0])},
        {"a": line(0, 16, [True, 4])},
        {"a": line(0, 16, [4], "F5")},
        {"a": line(8, 16, [2])},
        {"a": {"dtype": "F32"}},
        {"a": 3},
        {"__metadata__": {"k": 1}, "a": line(0, 16, [4])},
        b'{"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]},"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}',
        b"{" + b"[" * 100_000,
        b"{not json}",
    ],
)
def test_absurd_headers_are_refused(header: Any, tmp_path: Path) -> None:
    with pytest.raises(FileProblem):
        open_model(with_header(tmp_path / "a.safetensors", header))
