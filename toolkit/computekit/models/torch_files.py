"""Torch zip archives, as torch.save has written them since 1.6: read by offset, tensor by tensor.

An archive holds ``NAME/data.pkl`` and, stored uncompressed, one member ``NAME/data/KEY`` per storage. Layout:
``torch/serialization.py`` and ``caffe2/serialize/inline_container.cc``.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import struct
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

import torch
from torch import nn

from ..errors import FileProblem
from . import checkpoint, layout, pickled_modules, plain_data, raw
from .base import ModelFile, TensorInfo, Writer
from .checkpoint import LazyTensor, Storage
from .layout import Place
from .pickles import Malformed, Ordered
from .zips import open_zip

KEY = "computekit"
_MAX_MEMBER_BYTES = 1 << 28
_MAX_RATIO = 200
_MAX_METADATA, _MAX_METADATA_DEPTH = 1 << 20, 20


@dataclass(frozen=True)
class Extent:
    """Where a storage's bytes lie in the file, and their CRC-32; 0 if the file does not tell it."""

    offset: int
    nbytes: int
    crc: int = 0


@dataclass
class TorchFile(ModelFile):
    """A checkpoint: ``root`` is its object as inert data, ``extents`` say where its storages lie."""

    root: Any = None
    extents: dict[str, Extent] = field(default_factory=dict)
    imports: list[str] = field(default_factory=list)
    has_module: bool = False
    weights: dict[str, Place] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.weights = layout.find_weights(self.root)
        self.parts = layout.parts(self.weights)
        self.metadata = _metadata(self.root, self.weights)
        self._infos = {name: self._info(name, self.lazy(name)) for name in self.weights}

    @property
    def tensors(self) -> dict[str, TensorInfo]:
        return self._infos

    @property
    def unsafe(self) -> list[str]:
        """Names that the pickle would import and that ``torch.load(weights_only=True)`` refuses."""
        return [name for name in self.imports if not checkpoint.is_harmless(name)]

    def program(self, trust_pickle: bool) -> nn.Module | None:
        if not trust_pickle or not self.has_module:
            return None
        try:
            found = torch.load(self.path, map_location="cpu", weights_only=False)
        except Exception as error:  # unpickling runs anybody's code, which may fail in any way
            raise FileProblem(
                self.path, f"cannot be unpickled ({type(error).__name__}: {error})", "install what it was made with"
            ) from error
        if isinstance(found, dict):
            modules = {key: value for key, value in found.items() if isinstance(value, nn.Module)}
            found = modules[min(modules, key=layout.rank)]
        module: nn.Module = found.eval()
        return module

    def lazy(self, name: str) -> LazyTensor:
        """The description of one weight in the pickle."""
        place = self.weights[name]
        found: LazyTensor = place.container[place.key]
        return found

    def load(self, name: str) -> torch.Tensor:
        lazy = self.lazy(name)
        flat = raw.read(self.path, self._begin(lazy), lazy.dtype, lazy.span)
        return flat.as_strided(lazy.shape, lazy.stride).contiguous()

    def pieces(self, name: str, count: int) -> Iterator[torch.Tensor]:
        lazy = self.lazy(name)
        if not lazy.contiguous:
            return super().pieces(name, count)
        return raw.pieces(self.path, self._begin(lazy), lazy.dtype, lazy.numel, count)

    def _begin(self, lazy: LazyTensor) -> int:
        """Where the bytes of a tensor begin in the file."""
        return self.extent(lazy.storage).offset + lazy.offset * lazy.dtype.itemsize

    def extent(self, storage: Storage) -> Extent:
        """Where ``storage`` lies; FileProblem if it is missing or has another size than the pickle says."""
        found = self.extents.get(storage.key)
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

    def _info(self, name: str, lazy: LazyTensor) -> TensorInfo:
        self.extent(lazy.storage)
        return TensorInfo(name, lazy.shape, lazy.dtype, lazy.nbytes, lazy.identity)


def _metadata(root: Any, weights: dict[str, Place]) -> dict[str, Any]:
    """What computekit keeps in the file: beside the weights, or in ``_metadata`` of the first of bare state_dicts."""
    for holder in [root, *(place.container for place in itertools.islice(weights.values(), 1))]:
        found = holder.get(KEY) if isinstance(holder, dict) else None
        if found is None and isinstance(holder, Ordered) and isinstance(holder.state, dict):
            versions = holder.state.get("_metadata")
            found = versions.get(KEY) if isinstance(versions, dict) else None
        if isinstance(found, dict) and _is_plain(found):
            return found
    return {}


def _is_plain(root: Any) -> bool:
    """Whether ``root`` is what JSON could hold: a damaged or hostile file may have anything in its place."""
    waiting, left = [(root, 0)], _MAX_METADATA
    while waiting:
        value, depth = waiting.pop()
        if isinstance(value, dict):
            if not all(isinstance(key, str) for key in value):
                return False
            value = list(value.values())
        if isinstance(value, (list, tuple)):
            left -= len(value)  # what is referred to twice counts twice
            if depth > _MAX_METADATA_DEPTH or left < 0:
                return False
            waiting.extend((item, depth + 1) for item in value)
        elif value is not None and not isinstance(value, (str, bool, int, float)):
            return False
    return True


def sniff(path: Path) -> bool:
    """Whether ``path`` is a zip archive as torch.save writes it."""
    names = member_names(path)
    return has_member(names, "data.pkl") and not has_member(names, "constants.pkl")


def read(path: Path, trust_pickle: bool) -> TorchFile:
    """A torch zip archive.

    Raises:
        FileProblem: it is damaged, or names classes and ``trust_pickle`` is not given.
    """
    with archive(path) as opened:
        root = checkpoint.parse(io.BytesIO(opened.content("data.pkl")))
        return checked(path, "torch", root, opened.extents("data/"), trust_pickle)


def write(like: ModelFile | None, path: Path) -> Writer:
    """A writer of a checkpoint like ``like``, or of a plain state_dict."""
    from .torch_writer import TorchWriter

    repeats = isinstance(like, TorchFile) and like.format in ("torch", "torch legacy")  # others have no such pickle
    return TorchWriter(like if isinstance(like, TorchFile) and repeats else None, path)


def checked(path: Path, kind: str, root: Any, extents: dict[str, Extent], trust_pickle: bool) -> TorchFile:
    """The file of a pickle, modules in it as state_dicts; FileProblem if it names classes and is not trusted."""
    has_module = pickled_modules.holds_module(root)
    plain = pickled_modules.without_modules(root)
    file = TorchFile(path, kind, root=plain, extents=extents, imports=checkpoint.imports(root), has_module=has_module)
    if file.unsafe and trust_pickle:
        return replace(file, root=plain_data.plain(plain))
    if file.unsafe:
        what = "a pickled module" if has_module else "a pickle"
        shown = ", ".join(file.unsafe[:6]) + (f" and {len(file.unsafe) - 6} more" if len(file.unsafe) > 6 else "")
        raise FileProblem(
            path, f"is {what} that wants to import {shown}", "nothing was run; --trust-pickle if you trust its author"
        )
    return file


# -- the archive -----------------------------------------------------------------------------------------------------


@dataclass
class Archive:
    """An open torch archive: its members by their names below the archive's own folder."""

    path: Path
    zip: zipfile.ZipFile
    stream: IO[bytes]
    members: dict[str, zipfile.ZipInfo]

    def content(self, name: str) -> bytes:
        """All bytes of a small member; FileProblem if it is missing or would unpack to something huge."""
        if name not in self.members:
            raise FileProblem(self.path, f"lacks the member {name}", "the file is damaged")
        member = self.members[name]
        if member.file_size > min(_MAX_MEMBER_BYTES, _MAX_RATIO * max(member.compress_size, 1024)):
            raise FileProblem(self.path, f"member {name} unpacks to {member.file_size} bytes", "it is no model file")
        if member.compress_type == zipfile.ZIP_STORED and not member.CRC:  # torch can be told to leave them out
            extent = self.extent(name)
            self.stream.seek(extent.offset)
            return self.stream.read(extent.nbytes)
        with self.zip.open(member) as content:
            return content.read(member.file_size + 1)

    def extent(self, name: str) -> Extent:
        """Where a stored member's bytes begin: behind its local header, whose length only the header itself tells."""
        member = self.members[name]
        if member.compress_type != zipfile.ZIP_STORED or member.flag_bits & 0x1:
            raise FileProblem(
                self.path, f"member {name} is compressed", "torch.save(torch.load(FILE), FILE) writes it uncompressed"
            )
        self.stream.seek(member.header_offset)
        header = self.stream.read(30)
        if len(header) < 30 or header[:4] != b"PK\x03\x04":
            raise FileProblem(self.path, f"member {name} has no header", "the file is damaged")
        name_length, extra_length = struct.unpack("<HH", header[26:30])
        if self.stream.read(name_length) != member.orig_filename.encode(
            "utf-8" if member.flag_bits & 0x800 else "cp437"
        ):
            raise FileProblem(self.path, f"member {name} has the header of another", "the file is damaged")
        offset = member.header_offset + 30 + name_length + extra_length
        if offset + member.file_size > self.path.stat().st_size:
            raise FileProblem(self.path, f"member {name} reaches past the end", "the file is truncated")
        return Extent(offset, member.file_size, member.CRC)

    def extents(self, folder: str) -> dict[str, Extent]:
        """Where the members below ``folder`` lie, by the rest of their names."""
        found = {name.removeprefix(folder): self.extent(name) for name in self.members if name.startswith(folder)}
        end = 0
        for name, extent in sorted(found.items(), key=lambda item: item[1].offset):
            if extent.offset < end:
                raise FileProblem(self.path, f"member {folder}{name} overlaps another", "the file is damaged")
            end = extent.offset + extent.nbytes
        return found


@contextlib.contextmanager
def archive(path: Path) -> Iterator[Archive]:
    """Open a torch archive; whatever is wrong with it in the block below becomes a FileProblem."""
    try:
        with open_zip(path) as opened, path.open("rb") as stream:
            members = opened.infolist()
            names = [member.filename for member in members]
            if len(set(names)) != len(names):
                raise FileProblem(path, "has two members of the same name", "the file is damaged or was tampered with")
            if any(not 0 <= member.header_offset < path.stat().st_size for member in members):
                raise Malformed("a member lies outside the file")
            root = names[0].partition("/")[0] + "/"
            inside = {m.filename.removeprefix(root): m for m in members if m.filename.startswith(root)}
            found = Archive(path, opened, stream, inside)
            if "byteorder" in inside and found.content("byteorder").strip() != b"little":
                raise FileProblem(path, "was written on a big-endian machine", "save it as little-endian there")
            yield found
    except (ValueError, RuntimeError, EOFError, zipfile.BadZipFile, zlib.error, struct.error) as error:
        # what zipfile raises on damaged archives, `Malformed` included, which is a ValueError
        raise FileProblem(path, f"is a damaged torch file ({error})", "get the file again") from error


def member_names(path: Path) -> list[str]:
    """Names of a zip archive's members, or none if ``path`` is no readable zip."""
    try:
        with path.open("rb") as stream:
            if stream.read(2) != b"PK":
                return []
        with open_zip(path) as opened:
            return opened.namelist()
    except (OSError, ValueError, RuntimeError, zipfile.BadZipFile, struct.error):
        return []


def has_member(names: list[str], name: str) -> bool:
    """Whether ``name`` is a member directly below the archive's own folder."""
    return bool(names) and f"{names[0].partition('/')[0]}/{name}" in names
