"""Models in several safetensors files, the shards, with an index that tells which tensor lies in which.

The index is JSON: ``{"metadata": {"total_size": ...}, "weight_map": {tensor: file name}}``, as transformers writes it.
"""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from .. import files
from ..errors import FileProblem
from .base import ModelFile, Writer
from .safetensors_files import MAX_HEADER_BYTES, Entry, SafetensorsFile, SafetensorsWriter, aliases, header
from .safetensors_files import write as write_file

INDEX = ".index.json"
_NAME = ".safetensors.index.json"
_HASH_DIGITS = 8


class ShardedFile(SafetensorsFile):
    """The tensors of all shards that an index names."""

    def beside(self, tag: str) -> Path:
        return self.path.with_name(f"{stem(self.path)}-{tag}{_NAME}")


def stem(index: Path) -> str:
    """The model's name: ``model`` for ``model.safetensors.index.json``."""
    return index.name.removesuffix(".json").removesuffix(".index").removesuffix(".safetensors")


def sniff(path: Path) -> bool:
    """Whether ``path`` is the index of a sharded model."""
    if path.is_dir():
        return False
    with path.open("rb") as stream:
        start = stream.read(1 << 16).lstrip()
        return start.startswith(b"{") and b'"weight_map"' in start + stream.read(MAX_HEADER_BYTES)


def read(path: Path, _trust_pickle: bool = False) -> ShardedFile:
    """All shards that an index names, as one model.

    Raises:
        FileProblem: the index is none, or index and shards do not belong together.
    """
    where = weight_map(path)
    entries: dict[str, Entry] = {}
    notes: dict[str, str] = {}
    for shard in sorted(set(where.values())):
        file = path.with_name(shard)
        if not file.is_file():
            raise FileProblem(path, f"names the shard {shard}, which is missing", "download the folder again")
        if not shard.endswith(".safetensors"):
            raise FileProblem(path, f"is an index of {shard}, which is no safetensors file", "give the folder instead")
        found, own = header(file)
        notes.update(own)
        for name, entry in found.items():
            if where.get(name) != shard:
                raise FileProblem(file, f"holds tensor {name!r}, which the index does not place there")
            entries[name] = entry
    missing = [name for name in where if name not in entries]
    if missing:
        raise FileProblem(path, f"names tensor {missing[0]!r}, which no shard holds", "download the folder again")
    return ShardedFile(path, "sharded safetensors", entries=entries, aliases=aliases(entries, notes), notes=notes)


def weight_map(path: Path) -> dict[str, str]:
    """Which tensor lies in which file, by the index ``path``: all of them beside it.

    Raises:
        FileProblem: it is no index, or names files elsewhere.
    """
    try:
        found = files.read_json(path)["weight_map"]
        names = list(found.values())
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FileProblem(path, "is not an index of shards", "it needs a weight_map") from error
    for name in names:
        if not isinstance(name, str) or not name or Path(name).name != name:
            raise FileProblem(path, f"names the shard {str(name)[:40]!r}, which is not a plain file name")
    return dict(found)


def write(like: ModelFile | None, path: Path) -> Writer:
    """A writer of an index and shards like those of ``like``; of one file if ``path`` is not called like an index."""
    if not path.name.endswith(INDEX):
        return write_file(like, path)
    return IndexWriter(like if isinstance(like, ShardedFile) else None, path)


class Shards:
    """Shards that are written side by side. ``where`` tells which tensor lies in which file of ``folder``."""

    def __init__(self, source: SafetensorsFile | None, folder: Path) -> None:
        self._source, self._folder = source, folder
        self.writers: dict[str, SafetensorsWriter] = {}
        self.where: dict[str, str] = {}
        self._bytes = 0

    def add(self, file: str, name: str, tensor: torch.Tensor, like: str) -> None:
        self._writer(file).add(name, tensor, like)
        self._placed(file, name, tensor.numel() * tensor.element_size())

    def keep(self, file: str, name: str) -> None:
        assert self._source is not None
        self._writer(file).keep(name)
        if name not in self._source.aliases:
            self._placed(file, name, self._source.entry(name).nbytes)

    def tie(self, name: str, other: str, like: str) -> None:
        self.writers[self.where[other]].tie(name, other, like)

    def finish(self, metadata: dict[str, Any]) -> None:
        """Complete all shards; ``metadata`` goes into the first."""
        for number, writer in enumerate(self.writers.values()):
            writer.finish(metadata if number == 0 else {})

    def close(self) -> None:
        for writer in self.writers.values():
            writer.close()

    def write_index(self, path: Path, names: dict[str, str] | None = None) -> None:
        """The index, with the names that the files have in the end, where those are others."""
        where = {tensor: (names or {}).get(file, file) for tensor, file in self.where.items()}
        index = {"metadata": {"total_size": self._bytes}, "weight_map": where}
        path.write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")

    def _writer(self, file: str) -> SafetensorsWriter:
        if file not in self.writers:
            self.writers[file] = SafetensorsWriter(self._source, self._folder / file)
        return self.writers[file]

    def _placed(self, file: str, name: str, nbytes: int) -> None:
        self.where[name] = file
        self._bytes += nbytes


class IndexWriter(Writer):
    """Writes an index and its shards, of which there are as many as the source has.

    Shards are called after the index and carry the beginning of their content's hash: two versions of a model lie side
    by side, and which one it is depends on nothing but the index, which takes its place in one step.
    """

    source: ShardedFile | None

    def __init__(self, source: ShardedFile | None, path: Path) -> None:
        self.source, self._path = source, path
        self._shards = Shards(source, path.parent)

    def add(self, name: str, tensor: torch.Tensor, like: str) -> None:
        self._shards.add(self._file(like), name, tensor, like)

    def keep(self, name: str) -> None:
        self._shards.keep(self._file(name), name)

    def tie(self, name: str, other: str, like: str) -> None:
        self._shards.tie(name, other, like)

    def finish(self, metadata: dict[str, Any]) -> None:
        self._shards.finish(metadata)
        self._shards.close()
        written = {file: self._path.with_name(file) for file in self._shards.writers}
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            digests = list(pool.map(files.sha256, written.values()))
        names = {}
        for number, (file, digest) in enumerate(zip(written, digests, strict=True), 1):
            names[file] = f"{stem(self._path)}-{number:05}-of-{len(written):05}-{digest[:_HASH_DIGITS]}.safetensors"
            written[file].rename(self._path.with_name(names[file]))
        self._shards.write_index(self._path, names)

    def close(self) -> None:
        self._shards.close()

    def _file(self, like: str) -> str:
        return self.source.entry(like).path.name if self.source else "model"
