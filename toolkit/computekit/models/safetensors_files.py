"""safetensors files: a JSON header and the tensors' bytes. `safetensors_shards` has those in several files.

Format: an 8-byte little-endian header length N, N bytes of JSON, then the data that ``data_offsets`` point into
(https://github.com/huggingface/safetensors, "Format"). The reader checks everything that the format demands before it
believes it: offsets in range, in order and without holes, sizes that match shape and dtype, no name twice.
"""

from __future__ import annotations

import json
import math
import struct
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import torch

from ..errors import ComputekitError, FileProblem
from . import raw
from .base import ModelFile, TensorInfo, Writer

DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8,
    "U64": torch.uint64, "U32": torch.uint32, "U16": torch.uint16, "U8": torch.uint8,
    "BOOL": torch.bool, "C64": torch.complex64,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz, "F8_E5M2FNUZ": torch.float8_e5m2fnuz, "F8_E8M0": torch.float8_e8m0fnu,
}  # fmt: skip
NAMES = {dtype: name for name, dtype in DTYPES.items()}
MAX_HEADER_BYTES = 100_000_000  # the limit of the safetensors library
KEY = "computekit"
_ALIGNMENT = 8
_CHUNK = 1 << 22


@dataclass(frozen=True)
class Entry:
    """One tensor of a file: its header line and where its bytes begin in the file."""

    path: Path
    shape: tuple[int, ...]
    dtype: torch.dtype
    offset: int

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass
class SafetensorsFile(ModelFile):
    """One file, or several that are one model. ``aliases`` are names that stand for another tensor (a tie)."""

    entries: dict[str, Entry] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        try:
            found = json.loads(self.notes.get(KEY, "{}"))
        except (ValueError, RecursionError):
            found = {}
        self.metadata = found if isinstance(found, dict) else {}
        names = [*self.entries, *self.aliases]
        self._infos = {name: self._info(name) for name in names}

    @property
    def tensors(self) -> dict[str, TensorInfo]:
        return self._infos

    def entry(self, name: str) -> Entry:
        return self.entries[self.aliases.get(name, name)]

    def load(self, name: str) -> torch.Tensor:
        entry = self.entry(name)
        return raw.read(entry.path, entry.offset, entry.dtype, math.prod(entry.shape)).reshape(entry.shape)

    def pieces(self, name: str, count: int) -> Iterator[torch.Tensor]:
        entry = self.entry(name)
        return raw.pieces(entry.path, entry.offset, entry.dtype, math.prod(entry.shape), count)

    def _info(self, name: str) -> TensorInfo:
        entry = self.entry(name)
        return TensorInfo(name, entry.shape, entry.dtype, entry.nbytes, self.aliases.get(name, name))


def sniff(path: Path) -> bool:
    """Whether ``path`` begins like a safetensors file: a sensible length, then an opening brace."""
    if path.is_dir():
        return False
    with path.open("rb") as stream:
        start = stream.read(9)
    return len(start) == 9 and start[8:] == b"{" and struct.unpack("<Q", start[:8])[0] <= MAX_HEADER_BYTES


def read(path: Path, _trust_pickle: bool = False) -> SafetensorsFile:
    """A single safetensors file."""
    entries, notes = header(path)
    return SafetensorsFile(path, "safetensors", entries=entries, aliases=aliases(entries, notes), notes=notes)


def write(like: ModelFile | None, path: Path) -> Writer:
    """A writer of one safetensors file with the notes of ``like``."""
    return SafetensorsWriter(like if isinstance(like, SafetensorsFile) else None, path)


def aliases(entries: dict[str, Entry], notes: dict[str, str]) -> dict[str, str]:
    """Ties as ``safetensors.torch.save_model`` notes them: a name that was left out, and the one that was kept."""
    return {name: kept for name, kept in notes.items() if name not in entries and kept in entries}


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    if len(set(names)) != len(names):
        raise ValueError("a name occurs twice")
    return dict(pairs)


def header(path: Path) -> tuple[dict[str, Entry], dict[str, str]]:
    """The checked header of one file: its tensors and its ``__metadata__``."""
    size = path.stat().st_size
    with path.open("rb") as stream:
        start = stream.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else MAX_HEADER_BYTES + 1
        if length > MAX_HEADER_BYTES or 8 + length > size:
            raise FileProblem(path, f"announces a header of {length} bytes", "the file is damaged or truncated")
        text = stream.read(length)
    try:
        header = json.loads(text.decode("utf-8"), object_pairs_hook=_no_duplicates)
    except (ValueError, RecursionError) as error:
        raise FileProblem(path, f"has a damaged safetensors header ({error})", "get the file again") from error
    if not isinstance(header, dict):
        raise FileProblem(path, "has a safetensors header that is not an object", "the file is damaged")
    notes = header.pop("__metadata__", None) or {}
    if not isinstance(notes, dict) or not all(isinstance(value, str) for value in notes.values()):
        raise FileProblem(path, "has __metadata__ that is not text", "the file is damaged")
    entries = {name: _entry(path, name, line, 8 + length) for name, line in header.items()}
    end = 8 + length
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].offset, item[1].nbytes)):
        if entry.offset != end:
            raise FileProblem(path, f"tensor {name!r} overlaps another or leaves a hole", "the file is damaged")
        end += entry.nbytes
    if end != size:
        raise FileProblem(path, f"is {size} bytes where its header describes {end}", "the file is truncated or damaged")
    return entries, notes


def _entry(path: Path, name: str, line: Any, data: int) -> Entry:
    try:
        shape, (begin, end), kind = tuple(line["shape"]), line["data_offsets"], line["dtype"]
        whole = all(type(number) is int and 0 <= number < 2**62 for number in (*shape, begin, end))
    except (KeyError, TypeError, ValueError):
        whole, shape, begin, end, kind = False, (), 0, 0, ""
    if not whole:
        raise FileProblem(path, f"describes tensor {name!r} wrongly", "the file is damaged")
    if kind not in DTYPES:
        raise FileProblem(path, f"tensor {name!r} has dtype {kind!r}, which this torch does not have")
    entry = Entry(path, shape, DTYPES[kind], data + begin)
    if end - begin != entry.nbytes:
        raise FileProblem(
            path, f"tensor {name!r} has {end - begin} bytes for shape {list(shape)}", "the file is damaged"
        )
    return entry


class SafetensorsWriter(Writer):
    """One safetensors file. Tensors stream to where the data will begin; the header goes before them at the end.

    Space for the header is set aside by guess and the data is moved once if the guess was poor, which is cheap for
    the small files where it happens. Tensors whose size is not a multiple of 8 go last, so that all stay aligned.
    """

    source: SafetensorsFile | None

    def __init__(self, source: SafetensorsFile | None, path: Path) -> None:
        self.source, self.path = source, path
        entries = source.entries if source else {}
        own = [name for name, entry in entries.items() if entry.path.name == path.name]  # of one shard, if it is one
        lines = own or list(entries)
        guess = sum(3 * (len(name) + 80) for name in lines) + 512
        self._begin = 8 + guess + -guess % _ALIGNMENT
        self._stream = path.open("w+b")
        self._stream.seek(self._begin)
        self._odd = tempfile.SpooledTemporaryFile(max_size=1 << 24, dir=str(path.parent))  # noqa: SIM115
        self._lines: dict[str, tuple[str, tuple[int, ...], int]] = {}
        self._late: list[tuple[str, int, int, int]] = []
        self._notes: dict[str, str] = {}

    def add(self, name: str, tensor: torch.Tensor, like: str) -> None:
        if tensor.dtype not in NAMES:
            raise ComputekitError(f"tensor {name!r} is {tensor.dtype}, which safetensors cannot hold; write a .pt file")
        content = raw.bytes_of(tensor)
        self._append(name, NAMES[tensor.dtype], tuple(tensor.shape), tensor.dtype.itemsize, len(content))
        (self._odd if len(content) % _ALIGNMENT else self._stream).write(content)

    def keep(self, name: str) -> None:
        assert self.source is not None
        if name in self.source.aliases:
            self._notes[name] = self.source.aliases[name]
            return
        entry = self.source.entry(name)
        self._append(name, NAMES[entry.dtype], entry.shape, entry.dtype.itemsize, entry.nbytes)
        if entry.nbytes % _ALIGNMENT:
            for chunk in raw.chunks(entry.path, entry.offset, entry.nbytes):
                self._odd.write(chunk)
        else:
            raw.copy(entry.path, entry.offset, entry.nbytes, self._stream)

    def tie(self, name: str, other: str, like: str) -> None:
        self._notes[name] = other

    def finish(self, metadata: dict[str, Any]) -> None:
        self._append_late()
        kept = dict(self.source.notes) if self.source else {"format": "pt"}
        for name in [KEY, *(self.source.aliases if self.source else ())]:
            kept.pop(name, None)
        if metadata:
            kept[KEY] = json.dumps(metadata, sort_keys=True)
        header: dict[str, Any] = {"__metadata__": {**kept, **self._notes}} if kept or self._notes else {}
        offset = 0
        for name, (dtype, shape, nbytes) in self._lines.items():
            header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + nbytes]}
            offset += nbytes
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        text += b" " * (-len(text) % _ALIGNMENT)
        room = self._begin - 8
        if len(text) > room or room - len(text) > offset // 256:
            _move(self._stream, self._begin, offset, 8 + len(text))
            self._stream.truncate(8 + len(text) + offset)
        else:
            text += b" " * (room - len(text))
        self._stream.seek(0)
        self._stream.write(struct.pack("<Q", len(text)) + text)

    def close(self) -> None:
        self._odd.close()
        self._stream.close()

    def _append(self, name: str, dtype: str, shape: tuple[int, ...], itemsize: int, nbytes: int) -> None:
        if nbytes % _ALIGNMENT:
            self._late.append((name, itemsize, self._odd.tell(), nbytes))
        self._lines[name] = (dtype, shape, nbytes)

    def _append_late(self) -> None:
        for name, _, offset, nbytes in sorted(self._late, key=lambda item: -item[1]):
            self._lines[name] = self._lines.pop(name)
            self._odd.seek(offset)
            for at in range(0, nbytes, _CHUNK):
                self._stream.write(self._odd.read(min(_CHUNK, nbytes - at)))


def _move(stream: IO[bytes], begin: int, count: int, to: int) -> None:
    """Move ``count`` bytes within a file; the order of the chunks depends on the direction, as for memmove."""
    steps = range(0, count, _CHUNK)
    for at in steps if to < begin else reversed(steps):
        stream.seek(begin + at)
        chunk = stream.read(min(_CHUNK, count - at))
        stream.seek(to + at)
        stream.write(chunk)
