"""GGUF files of llama.cpp: read as floats. Quantized blocks are decoded by the ``gguf`` package (the ``hf`` extra).

Header: magic, version, number of tensors, number of key-value pairs; then the pairs and the tensor descriptions, then
padding to ``general.alignment`` and the data (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md). The header
is parsed here, because lengths in a damaged file must not be believed.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import torch

from ..errors import FileProblem, MissingExtra
from . import raw
from .base import ModelFile, TensorInfo

MAGIC = b"GGUF"
_PLAIN = {
    0: torch.float32, 1: torch.float16, 24: torch.int8, 25: torch.int16, 26: torch.int32, 27: torch.int64,
    28: torch.float64, 30: torch.bfloat16,
}  # fmt: skip
# Elements and bytes of one block by type number, from ggml's type traits.
_BLOCKS = {
    2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22), 7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34),
    9: ("Q8_1", 32, 40), 10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110), 12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210), 15: ("Q8_K", 256, 292), 16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74), 18: ("IQ3_XXS", 256, 98), 19: ("IQ1_S", 256, 50), 20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110), 22: ("IQ2_S", 256, 82), 23: ("IQ4_XS", 256, 136), 29: ("IQ1_M", 256, 56),
    34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66), 39: ("MXFP4", 32, 17),
}  # fmt: skip
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_MAX_KEPT = 64  # longer arrays (vocabularies) are skipped over


@dataclass(frozen=True)
class Block:
    """Where a tensor lies and how it is encoded; ``dtype`` is None for quantized blocks."""

    kind: int
    dtype: torch.dtype | None
    encoding: str
    offset: int
    nbytes: int


@dataclass
class GgufFile(ModelFile):
    """``tensors`` have llama.cpp's names, torch's order of sizes, and float32 for quantized blocks."""

    blocks: dict[str, Block] = field(default_factory=dict)
    infos: dict[str, TensorInfo] = field(default_factory=dict)
    fields: dict[str, Any] = field(default_factory=dict)

    @property
    def tensors(self) -> dict[str, TensorInfo]:
        return self.infos

    def load(self, name: str) -> torch.Tensor:
        block, info = self.blocks[name], self.infos[name]
        if block.dtype is not None:
            return raw.read(self.path, block.offset, block.dtype, info.numel).reshape(info.shape)
        try:
            import gguf
            from gguf import quants
        except ImportError:
            raise MissingExtra("gguf", "hf", f"decoding {block.encoding} blocks of {self.path}") from None
        data = raw.read(self.path, block.offset, torch.uint8, block.nbytes).numpy()
        try:
            values = quants.dequantize(data, gguf.GGMLQuantizationType(block.kind))
        except NotImplementedError:
            hint = "the installed gguf package cannot; requantize it with llama.cpp"
            raise FileProblem(self.path, f"tensor {name!r} is {block.encoding}, which must be decoded", hint) from None
        return torch.from_numpy(values).reshape(info.shape)


def sniff(path: Path) -> bool:
    """Whether ``path`` begins with GGUF's magic."""
    if path.is_dir():
        return False
    with path.open("rb") as stream:
        return stream.read(4) == MAGIC


def read(path: Path, _trust_pickle: bool) -> GgufFile:
    """A GGUF file, version 2 or 3.

    Raises:
        FileProblem: it is damaged, big-endian, or has a type of tensor that is not known here.
    """
    size = path.stat().st_size
    with path.open("rb") as stream:
        header = _Header(path, stream, size)
        stream.seek(4)
        version, count, pairs = header.unpack("<IQQ")
        if version not in (2, 3):
            raise FileProblem(path, f"is GGUF of version {version}; 2 and 3 are read", "convert it with llama.cpp")
        fields = {}
        for _ in range(pairs):
            key = header.text()
            fields[key] = header.value(header.unpack("<I")[0])
        described = [header.tensor() for _ in range(count)]
        alignment = fields.get("general.alignment", 32)
        if not isinstance(alignment, int) or not 0 < alignment <= 1 << 20:
            raise FileProblem(path, f"has alignment {alignment!r}", "the file is damaged")
        begin = stream.tell() + -stream.tell() % alignment
    infos: dict[str, TensorInfo] = {}
    blocks: dict[str, Block] = {}
    for name, shape, kind, offset in described:
        block = _block(path, name, shape, kind, begin + offset)
        if name in infos:
            raise FileProblem(path, f"holds two tensors called {name!r}", "the file is damaged")
        if block.offset + block.nbytes > size:
            raise FileProblem(path, f"ends before tensor {name!r}", "the file is truncated")
        blocks[name] = block
        infos[name] = TensorInfo(name, shape, block.dtype or torch.float32, block.nbytes, name, block.encoding)
    end = begin
    for name, block in sorted(blocks.items(), key=lambda item: item[1].offset):
        if block.offset < end:
            raise FileProblem(path, f"tensor {name!r} overlaps another", "the file is damaged")
        end = block.offset + block.nbytes
    return GgufFile(path, "gguf", blocks=blocks, infos=infos, fields=fields)


def _block(path: Path, name: str, shape: tuple[int, ...], kind: int, offset: int) -> Block:
    numel = math.prod(shape)
    if kind in _PLAIN:
        dtype = _PLAIN[kind]
        return Block(kind, dtype, "", offset, numel * dtype.itemsize)
    if kind not in _BLOCKS:
        raise FileProblem(path, f"tensor {name!r} has type number {kind}, which is not known here", "update computekit")
    encoding, elements, nbytes = _BLOCKS[kind]
    if not shape or shape[-1] % elements:
        problem = f"tensor {name!r} of shape {list(shape)} has no whole {encoding} blocks"
        raise FileProblem(path, problem, "the file is damaged")
    return Block(kind, None, encoding, offset, numel // elements * nbytes)


class _Header:
    """Reads the header; every length is checked against the size of the file before it is used."""

    def __init__(self, path: Path, stream: IO[bytes], size: int) -> None:
        self.path, self.stream, self.size = path, stream, size

    def damaged(self, what: str) -> FileProblem:
        return FileProblem(self.path, f"has a damaged GGUF header ({what})", "get the file again")

    def take(self, count: int) -> bytes:
        if count > self.size - self.stream.tell():
            raise self.damaged("it is cut off")
        return self.stream.read(count)

    def unpack(self, form: str) -> tuple[Any, ...]:
        return struct.unpack(form, self.take(struct.calcsize(form)))

    def text(self) -> str:
        (length,) = self.unpack("<Q")
        return self.take(length).decode("utf-8", "replace")

    def value(self, kind: int, depth: int = 0) -> Any:
        if kind in _SCALARS:
            return self.unpack(f"<{_SCALARS[kind]}")[0]
        if kind == _STRING:
            return self.text()
        if kind != _ARRAY or depth > 4:
            raise self.damaged(f"a value has type {kind}")
        inner, length = self.unpack("<IQ")
        if inner in _SCALARS:
            width = struct.calcsize(f"<{_SCALARS[inner]}")
            data = self.take(width * length)
            return (
                list(struct.unpack(f"<{length}{_SCALARS[inner]}", data)) if length <= _MAX_KEPT else f"{length} values"
            )
        if length * 8 > self.size:
            raise self.damaged("an array is longer than the file")
        values = [self.value(inner, depth + 1) for _ in range(length)]
        return values if length <= _MAX_KEPT else f"{length} values"

    def tensor(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self.text()
        (dimensions,) = self.unpack("<I")
        if dimensions > 8:
            raise self.damaged(f"a tensor of {dimensions} dimensions")
        sizes = self.unpack(f"<{dimensions}Q")
        kind, offset = self.unpack("<IQ")
        if any(size >= 2**48 for size in sizes) or offset > self.size:
            raise self.damaged("a tensor larger than the file")
        return name, tuple(reversed(sizes)), kind, offset
