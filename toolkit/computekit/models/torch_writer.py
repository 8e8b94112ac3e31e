"""Writes torch zip archives one storage at a time: the data first, the pickle that names it last.

The archive is what ``torch.save`` makes (same members, 64-byte alignment, checksums), with a fixed name and date so
that equal models are equal bytes, and it opens with ``torch.load(weights_only=True, mmap=True)``.
"""

from __future__ import annotations

import contextlib
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ..errors import FileProblem
from ..following import Following
from . import checkpoint, pickle_writing, pickles, raw
from .base import Writer
from .checkpoint import LazyTensor, Storage
from .pickles import Call, Malformed, Ordered
from .torch_files import KEY, Extent, TorchFile

_ROOT = "archive"
_ALIGNMENT = 64
_DATE = (1980, 1, 1, 0, 0, 0)
_LOCAL_HEADER, _ZIP64_EXTRA, _EXTRA_HEADER = 30, 20, 4


class TorchWriter(Writer):
    """A checkpoint like ``source`` (same nesting around the weights), or a plain state_dict without a source."""

    source: TorchFile | None

    def __init__(self, source: TorchFile | None, path: Path) -> None:
        self.source = source
        self._stream = path.open("wb")
        self._following = Following(path)
        self._archive = zipfile.ZipFile(self._stream, "w", zipfile.ZIP_STORED)
        self._tensors: dict[str, Call | LazyTensor] = {}
        self._places: dict[str, list[str]] = {}
        self._new: dict[int, Storage] = {}

    def add(self, name: str, tensor: torch.Tensor, like: str) -> None:
        self._put(name, self._written(tensor, like), like)

    def _written(self, tensor: torch.Tensor, like: str) -> Call:
        """Append ``tensor`` as a storage of its own; the call that rebuilds it."""
        parameter = self.source is not None and self.source.lazy(like).parameter and tensor.is_floating_point()
        storage = checkpoint.new_storage(str(len(self._new)), tensor.dtype, tensor.numel())
        self._new[id(storage)] = storage
        self._member(f"data/{storage.key}", raw.bytes_of(tensor))
        return checkpoint.tensor_call(storage, tuple(tensor.shape), tensor.dtype, parameter)

    def keep(self, name: str) -> None:
        assert self.source is not None
        self._put(name, self.source.lazy(name), name)

    def tie(self, name: str, other: str, like: str) -> None:
        self._put(name, self._tensors[other], like)

    def finish(self, metadata: dict[str, Any]) -> None:
        self._separate_views()
        root, rebuilt = self._root(metadata)

        def replace(value: Any) -> Any:
            return rebuilt.get(id(value), value)

        keys = self._copy_storages(root, replace)

        def spelled(value: Any) -> Any:
            if isinstance(value, Storage) and id(value) not in self._new:
                return value.persistent(keys[value.key])
            return checkpoint.to_call(replace(value))

        try:
            document = pickle_writing.emit(root, spelled)
        except Malformed as error:
            path = self.source.path if self.source else Path(self._stream.name)
            hint = "computekit convert --bare writes its weights alone"
            raise FileProblem(path, f"holds something that cannot be written again: {error}", hint) from error
        for member, content in (
            ("data.pkl", document),
            (".format_version", b"1"),
            (".storage_alignment", str(_ALIGNMENT).encode()),
            ("byteorder", b"little"),
            ("version", b"3\n"),
        ):
            self._member(member, content)
        self._archive.close()

    def close(self) -> None:
        with contextlib.suppress(OSError, ValueError):  # after an error the archive is incomplete, and thrown away
            self._archive.close()
        self._stream.close()
        self._following.end()

    def _put(self, name: str, tensor: Call | LazyTensor, like: str) -> None:
        self._tensors[name] = tensor
        self._places.setdefault(like, []).append(name)

    def _separate_views(self) -> None:
        """Give kept tensors storages of their own where the rest of theirs is no longer needed.

        Recurrent layers keep all their weights in one storage: a bias that is kept must not bring those along.
        """
        kept: dict[str, dict[tuple[Any, ...], LazyTensor]] = {}
        for tensor in self._tensors.values():
            if isinstance(tensor, LazyTensor):
                kept.setdefault(tensor.storage.key, {})[tensor.identity] = tensor
        own: dict[tuple[Any, ...], Call] = {}
        for name, tensor in self._tensors.items():
            if self.source is None or not isinstance(tensor, LazyTensor):
                continue
            if sum(view.nbytes for view in kept[tensor.storage.key].values()) < tensor.storage.nbytes:
                if tensor.identity not in own:
                    own[tensor.identity] = self._written(self.source.load(name), name)
                self._tensors[name] = own[tensor.identity]

    def _root(self, metadata: dict[str, Any]) -> tuple[Any, dict[int, Any]]:
        """The object to write, and which containers of the source are replaced by which."""
        if self.source is None:
            bare = Ordered(self._tensors)
            return ({"state_dict": bare, KEY: metadata} if metadata else bare), {}
        root = self.source.root
        rebuilt: dict[int, dict[Any, Any]] = {}
        for place in self.source.weights.values():
            if id(place.container) not in rebuilt:
                rebuilt[id(place.container)] = self._rebuild(place.container)
        if isinstance(root, dict) and id(root) not in rebuilt:
            rebuilt[id(root)] = _with_key(root, metadata)
        elif rebuilt:  # a bare state_dict, or the first of a list
            first = next(iter(rebuilt))
            rebuilt[first] = _with_versions(rebuilt[first], metadata)
        return root, rebuilt

    def _rebuild(self, container: dict[Any, Any]) -> dict[Any, Any]:
        """``container`` with its weights replaced in place by what the transformation made of them."""
        assert self.source is not None
        names = {p.key: n for n, p in self.source.weights.items() if p.container is container}
        new: dict[Any, Any] = Ordered() if isinstance(container, Ordered) else {}
        for key, value in container.items():
            if key not in names:
                if key != KEY:
                    new[key] = value
                continue
            prefix = names[key][: len(names[key]) - len(key)]
            for name in self._places.get(names[key], []):
                new[name.removeprefix(prefix)] = self._tensors[name]
        if isinstance(new, Ordered) and isinstance(container, Ordered) and container.has_state:
            new.set_state(container.state)
        return new

    def _copy_storages(self, root: Any, replace: Callable[[Any], Any]) -> dict[str, str]:
        """Copy the source's storages that are still referred to; their new keys by the old ones."""
        keys: dict[str, str] = {}
        for value in pickles.walk(root, checkpoint.contents, replace):
            if isinstance(value, Storage) and id(value) not in self._new and value.key not in keys:
                assert self.source is not None
                keys[value.key] = str(len(self._new) + len(keys))
                self._copy_member(f"data/{keys[value.key]}", self.source.path, self.source.extent(value))
        return keys

    def _member(self, name: str, content: memoryview | bytes) -> None:
        """Append one member."""
        self._begin(name, len(content), zlib.crc32(content))
        self._stream.write(content)
        self._end()

    def _copy_member(self, name: str, path: Path, extent: Extent) -> None:
        """Append bytes of another file. A checksum that is known goes along: what was damaged stays known as such."""
        self._begin(name, extent.nbytes, extent.crc or raw.crc32(path, extent.offset, extent.nbytes))
        raw.copy(path, extent.offset, extent.nbytes, self._stream)
        self._end()

    def _begin(self, name: str, size: int, crc: int) -> None:
        """Write the header of the next member: whole, where `zipfile` would come back to it behind the data.

        The data will begin at a multiple of the alignment, as torch's own padding does it.
        """
        info = zipfile.ZipInfo(f"{_ROOT}/{name}", _DATE)
        info.external_attr = 0o600 << 16
        info.CRC, info.file_size, info.compress_size = crc, size, size
        info.header_offset = self._stream.tell()
        zip64 = size * 1.05 > zipfile.ZIP64_LIMIT  # whether sizes take 8 bytes
        header = _LOCAL_HEADER + len(info.filename) + (_ZIP64_EXTRA if zip64 else 0) + _EXTRA_HEADER
        padding = -(info.header_offset + header) % _ALIGNMENT
        info.extra = b"FB" + padding.to_bytes(2, "little") + b"Z" * padding
        self._stream.write(info.FileHeader(zip64))
        self._archive.filelist.append(info)
        self._archive.NameToInfo[info.filename] = info

    def _end(self) -> None:
        """The data of a member is written."""
        self._stream.flush()
        self._archive.start_dir = self._stream.tell()
        self._following.reached(self._archive.start_dir)


def _copied(container: dict[Any, Any]) -> dict[Any, Any]:
    if not isinstance(container, Ordered):
        return dict(container)
    copy = Ordered(container)
    return copy.set_state(container.state) if container.has_state else copy


def _with_key(checkpoint_dict: dict[Any, Any], metadata: dict[str, Any]) -> dict[Any, Any]:
    """A checkpoint with ``metadata`` under a key of its own."""
    new = _copied(checkpoint_dict)
    new.pop(KEY, None)
    if metadata:
        new[KEY] = metadata
    return new


def _with_versions(state_dict: dict[Any, Any], metadata: dict[str, Any]) -> dict[Any, Any]:
    """A bare state_dict with ``metadata`` in its ``_metadata``, where torch keeps the versions of its modules.

    A bare state_dict holds tensors and nothing else; another key would be one that no module expects.
    """
    attributes = state_dict.state if isinstance(state_dict, Ordered) and state_dict.has_state else {}
    if not isinstance(attributes, dict):
        return state_dict
    versions = attributes.get("_metadata")
    kept = Ordered(versions) if isinstance(versions, dict) else Ordered()
    kept.pop(KEY, None)
    if metadata:
        kept[KEY] = metadata
    if not kept and not attributes:
        return state_dict
    return Ordered(state_dict).set_state({**attributes, "_metadata": kept})
