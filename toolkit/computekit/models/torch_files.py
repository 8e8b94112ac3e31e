"""Torch files: the zip archives of torch >= 1.6 and the plain pickles before; read by offset, written as zip.

A torch zip holds ``NAME/data.pkl`` and, stored uncompressed, one member ``NAME/data/KEY`` per storage. The older kind
is five pickles (magic number, version, system, object, storage keys) followed by each storage's length and bytes.
Layouts: ``torch/serialization.py`` and ``caffe2/serialize/inline_container.cc``.
"""

from __future__ import annotations

import io
import struct
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch

from ..errors import FileProblem
from . import checkpoint, pickles, raw
from .base import ModelFile, TensorInfo
from .checkpoint import LazyTensor, Place, Storage
from .pickles import Malformed, Ordered

MAGIC = 0x1950A86A20F9469CFC6C
_MAX_PICKLE_BYTES = 1 << 30
KEY = "computekit"


@dataclass(frozen=True)
class Extent:
    """Where a storage's bytes lie in the file."""

    offset: int
    nbytes: int


@dataclass
class TorchFile(ModelFile):
    """A checkpoint: ``root`` is its object as inert data, ``extents`` say where its storages lie."""

    root: Any = None
    weights: dict[str, Place] | None = None
    extents: dict[str, Extent] | None = None

    def __post_init__(self) -> None:
        self.weights = checkpoint.find_weights(self.root) if self.weights is None else self.weights
        self.parts = checkpoint.parts(self.weights)
        self.metadata = _metadata(self.root)
        self._infos = {name: self._info(name, self.lazy(name)) for name in self.weights}

    @property
    def tensors(self) -> dict[str, TensorInfo]:
        return self._infos

    def lazy(self, name: str) -> LazyTensor:
        """The description of one weight in the pickle."""
        assert self.weights is not None
        place = self.weights[name]
        found: LazyTensor = place.container[place.key]
        return found

    def load(self, name: str) -> torch.Tensor:
        return self.read(self.lazy(name))

    def extent(self, storage: Storage) -> Extent:
        """Where ``storage`` lies; FileProblem if it is missing or has another size than the pickle says."""
        found = (self.extents or {}).get(storage.key)
        if found is None and storage.nbytes == 0:
            return Extent(0, 0)
        if found is None:
            raise FileProblem(self.path, f"lacks the data of storage {storage.key!r}", "the file is damaged")
        if found.nbytes != storage.nbytes:
            raise FileProblem(
                self.path,
                f"storage {storage.key!r} is {found.nbytes} bytes where {storage.nbytes} are announced",
                "the file is damaged",
            )
        return found

    def read(self, lazy: LazyTensor) -> torch.Tensor:
        """Any tensor of the checkpoint, weight or not."""
        extent = self.extent(lazy.storage)
        flat = raw.read(self.path, extent.offset + lazy.offset * lazy.dtype.itemsize, lazy.dtype, lazy.span)
        return flat.as_strided(lazy.shape, lazy.stride).contiguous()

    def _info(self, name: str, lazy: LazyTensor) -> TensorInfo:
        self.extent(lazy.storage)
        return TensorInfo(name, lazy.shape, lazy.dtype, lazy.nbytes, lazy.identity)


def _metadata(root: Any) -> dict[str, Any]:
    """What computekit keeps in the file: beside the weights, or in ``_metadata`` of a bare state_dict."""
    found = root.get(KEY) if isinstance(root, dict) else None
    if found is None and isinstance(root, Ordered) and root.has_state and isinstance(root.state, dict):
        versions = root.state.get("_metadata")
        found = versions.get(KEY) if isinstance(versions, dict) else None
    return found if isinstance(found, dict) else {}


def is_torch_zip(path: Path) -> bool:
    """Whether ``path`` is a zip archive as torch.save writes it."""
    try:
        with zipfile.ZipFile(path) as archive:
            return any(name.count("/") == 1 and name.endswith("/data.pkl") for name in archive.namelist())
    except (OSError, zipfile.BadZipFile, ValueError, NotImplementedError):
        return False


def is_legacy(path: Path) -> bool:
    """Whether ``path`` starts as the files of torch < 1.6 do."""
    with path.open("rb") as stream:
        try:
            return bool(pickles.parse(io.BytesIO(stream.read(64))) == MAGIC)
        except Malformed:
            return False


def open_zip(path: Path) -> tuple[Any, dict[str, Extent]]:
    """The object of a torch zip and where its storages lie.

    Raises:
        FileProblem: the archive is not one that torch.save writes.
    """
    with zipfile.ZipFile(path) as archive, path.open("rb") as stream:
        members = archive.infolist()
        names = [member.filename for member in members]
        if len(set(names)) != len(names):
            raise FileProblem(path, "has two members of the same name", "the file is damaged or was tampered with")
        document = next(name for name in names if name.count("/") == 1 and name.endswith("/data.pkl"))
        root = document.removesuffix("data.pkl")
        by_name = {member.filename: member for member in members}
        if (order := by_name.get(f"{root}byteorder")) and _content(path, archive, order).strip() != b"little":
            raise FileProblem(path, "was written on a big-endian machine", "load and save it there as little-endian")
        object_pickle = _content(path, archive, by_name[document])
        extents = {
            name.removeprefix(f"{root}data/"): _extent(path, stream, member)
            for name, member in by_name.items()
            if name.startswith(f"{root}data/")
        }
    return checkpoint.parse(io.BytesIO(object_pickle)), extents


def _content(path: Path, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> bytes:
    if member.file_size > _MAX_PICKLE_BYTES or member.file_size > 1000 * max(member.compress_size, 1024):
        raise FileProblem(
            path, f"member {member.filename} unpacks to {member.file_size} bytes", "that is no model file"
        )
    with archive.open(member) as content:
        return content.read(member.file_size + 1)


def _extent(path: Path, stream: IO[bytes], member: zipfile.ZipInfo) -> Extent:
    """Where a stored member's bytes begin: behind its local header, whose length only the header itself tells."""
    if member.compress_type != zipfile.ZIP_STORED or member.flag_bits & 0x1:
        raise FileProblem(
            path, f"member {member.filename} is compressed", "unpack it and zip it again without compression"
        )
    stream.seek(member.header_offset)
    header = stream.read(30)
    if len(header) < 30 or header[:4] != b"PK\x03\x04":
        raise FileProblem(path, f"member {member.filename} has no header", "the file is damaged")
    name_length, extra_length = struct.unpack("<HH", header[26:30])
    offset = member.header_offset + 30 + name_length + extra_length
    if offset + member.file_size > path.stat().st_size:
        raise FileProblem(path, f"member {member.filename} reaches past the end", "the file is truncated")
    return Extent(offset, member.file_size)


def open_legacy(path: Path) -> tuple[Any, dict[str, Extent]]:
    """The object of a file of torch < 1.6 and where its storages lie."""
    size = path.stat().st_size
    with path.open("rb") as stream:
        for _ in range(3):  # magic number, protocol version, byte order and type sizes
            system = pickles.parse(stream)
        if isinstance(system, dict) and system.get("little_endian") is False:
            raise FileProblem(path, "was written on a big-endian machine", "load and save it there as little-endian")
        root = checkpoint.parse(stream)
        keys = pickles.parse(stream)
        if not isinstance(keys, list):
            raise Malformed("the list of storages is missing")
        known = {v.key: v for v in pickles.walk(root, checkpoint.contents) if isinstance(v, Storage)}
        extents: dict[str, Extent] = {}
        for key in map(str, keys):
            length = stream.read(8)
            if len(length) < 8 or key not in known:
                raise FileProblem(path, f"ends before storage {key!r}", "the file is truncated")
            storage = known[key]
            if struct.unpack("<q", length)[0] != storage.count:
                raise FileProblem(path, f"storage {key!r} has another size than announced", "the file is damaged")
            extents[key] = Extent(stream.tell(), storage.nbytes)
            if stream.seek(storage.nbytes, io.SEEK_CUR) > size:
                raise FileProblem(path, f"ends inside storage {key!r}", "the file is truncated")
    return root, extents
