"""What a model file holds, without running any of it and in memory that follows its largest tensor."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from .. import files
from . import checkpoint, families, layout, pickles, raw, roles
from .base import ModelFile, TensorInfo
from .checkpoint import Storage
from .float_view import FloatView
from .formats import open_model
from .huggingface import Folder
from .torch_files import KEY, TorchFile

_CHUNK = 1 << 18  # values that are looked at at a time: small enough for the cache
_ENDS = 1 << 14
_WORTH_COMPARING = 1024  # bytes: freshly initialized biases are all alike, and it does not matter


def inspect(path: Path, values: bool = True, progress: Callable[[int], object] = lambda _bytes: None) -> dict[str, Any]:
    """Everything that ``computekit inspect`` reports, as plain data.

    ``values`` also reads the tensors' data: NaN, infinities, and tensors with equal content. ``progress`` is told the
    bytes that were read.

    Raises:
        FileProblem: it is no model file, or it is damaged.
    """
    source = open_model(path, trust_pickle=True)  # opening never runs anything; what needs trust is reported
    tensors = list(source.tensors.values())
    unsafe = source.unsafe if isinstance(source, TorchFile) else []
    report: dict[str, Any] = {
        "path": str(path),
        "format": source.format,
        "file_bytes": files.size_bytes(path),
        "models": list(source.parts),
        "copies": roles.copies(source),
        "parameters": roles.count_parameters(FloatView(source)),
        "dtypes": _dtypes(tensors),
        "tied": _tied(tensors),
        "other_content": other_content(source) if isinstance(source, TorchFile) else [],
        "globals": source.imports if isinstance(source, TorchFile) else [],
        "unsafe_globals": unsafe,
        "metadata": source.metadata,
        "about": _about(source),
        "family": families.guess(source.tensors),
    }
    found = _values(source, progress) if values else None
    report["non_finite"] = found and found["non_finite"]
    report["duplicates"] = found and found["duplicates"]
    report["can"] = _can(source, report)
    report["tensors"] = [_tensor(info) for info in tensors]
    return report


def _tensor(info: TensorInfo) -> dict[str, Any]:
    line = {"name": info.name, "shape": list(info.shape), "dtype": _name(info.dtype), "bytes": info.nbytes}
    return {**line, "encoding": info.encoding} if info.encoding else line


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _dtypes(tensors: list[TensorInfo]) -> dict[str, dict[str, int]]:
    """Tensors, values and bytes by dtype (or by the file's own encoding), the largest first; ties count once."""
    mix: dict[str, dict[str, int]] = {}
    seen = set()
    for info in tensors:
        if info.storage is not None and info.storage in seen:
            continue
        seen.add(info.storage)
        entry = mix.setdefault(info.encoding or _name(info.dtype), {"tensors": 0, "values": 0, "bytes": 0})
        entry["tensors"] += 1
        entry["values"] += info.numel
        entry["bytes"] += info.nbytes
    return dict(sorted(mix.items(), key=lambda item: -item[1]["bytes"]))


def _tied(tensors: list[TensorInfo]) -> list[list[str]]:
    groups: dict[Any, list[str]] = defaultdict(list)
    for info in tensors:
        if info.storage is not None:
            groups[info.storage].append(info.name)
    return [names for names in groups.values() if len(names) > 1]


def other_content(source: TorchFile) -> list[dict[str, Any]]:
    """What a checkpoint holds besides its weights, by top-level key: bytes of tensors, and whether it is an optimizer.

    Bytes that the weights use too are not counted.
    """
    top = layout.top_level(source.root)
    weights = source.weights.values()
    counted = {source.lazy(name).storage.key for name in source.weights}
    holders = {id(top[place.path[0]]) for place in weights if place.path}
    flat = {place.key for place in weights if not place.path}
    others = []
    for key, value in top.items():
        if key == KEY or id(value) in holders or (isinstance(key, str) and key in flat):
            continue
        storages = {v.key: v.nbytes for v in pickles.walk(value, checkpoint.contents) if isinstance(v, Storage)}
        nbytes = sum(size for name, size in storages.items() if name not in counted)
        counted |= set(storages)
        optimizer = isinstance(key, str) and layout.is_optimizer(key, value)
        others.append({"key": str(key), "optimizer": optimizer, "bytes": nbytes, "value": _shown(value)})
    return others


def _shown(value: Any) -> Any:
    """A plain value as it is, and what kind of thing anything else is."""
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, str):
        return value[:200]
    if kind := layout.unusual(value):
        return kind
    return {"Ordered": "dict", "LazyTensor": "tensor", "Call": "object"}.get(type(value).__name__, type(value).__name__)


def _about(source: ModelFile) -> dict[str, Any]:
    """The file's own description of itself: a folder's config, safetensors' or GGUF's key-value pairs."""
    if isinstance(source, Folder):
        return source.config
    found = getattr(source, "notes", None) or getattr(source, "fields", None) or {}
    return {key: value for key, value in found.items() if key != KEY}


def _values(source: ModelFile, progress: Callable[[int], object]) -> dict[str, Any]:
    """One pass over the data, a piece at a time (a second one over tensors that look alike)."""
    non_finite: dict[str, dict[str, int]] = {}
    alike: dict[Any, list[str]] = defaultdict(list)
    seen = set()
    for info in source.tensors.values():
        if info.storage is not None and info.storage in seen:
            continue
        seen.add(info.storage)
        counts, ends = {"nan": 0, "inf": 0}, hashlib.sha256()
        for number, piece in enumerate(source.pieces(info.name, _CHUNK)):
            _count_non_finite(piece, counts)
            last = raw.bytes_of(piece)[-_ENDS:]
            if not number:
                ends.update(raw.bytes_of(piece)[:_ENDS])
            progress(info.nbytes * len(piece) // info.numel)
        if any(counts.values()):
            non_finite[info.name] = counts
        if info.nbytes >= _WORTH_COMPARING:
            ends.update(last)
            alike[info.shape, info.dtype, ends.digest()].append(info.name)
    duplicates: dict[Any, list[str]] = defaultdict(list)
    for names in alike.values():
        for name in names if len(names) > 1 else ():
            whole = hashlib.sha256()
            for piece in source.pieces(name, _CHUNK):
                whole.update(raw.bytes_of(piece))
            duplicates[whole.digest()].append(name)
    return {"non_finite": non_finite, "duplicates": [names for names in duplicates.values() if len(names) > 1]}


def _count_non_finite(piece: torch.Tensor, counts: dict[str, int]) -> None:
    """Add the NaN and infinite values of a 1-D tensor to ``counts``."""
    if not (piece.is_floating_point() or piece.is_complex()) or raw.is_packed(piece.dtype):
        return
    piece = piece.float() if piece.dtype.itemsize == 1 else piece
    if not bool(piece.isfinite().all()):
        counts["nan"] += int(piece.isnan().sum())
        counts["inf"] += int(piece.isinf().sum())


def _can(source: ModelFile, report: dict[str, Any]) -> list[str]:
    """What can be done with the file, as commands where there are some."""
    path, trust = report["path"], " --trust-pickle" if report["unsafe_globals"] else ""
    can = []
    if report["unsafe_globals"]:
        can.append("any other command needs --trust-pickle: the pickle names classes that torch.load would refuse")
    if source.format in ("torchscript", "pt2", "gguf"):
        can.append(f"computekit convert {path} weights.safetensors{trust}, then quantize that")
    else:
        can.append(f"computekit quantize --int8 {path}{trust}")
        target = "weights.pt" if "safetensors" in source.format or source.format == "folder" else "weights.safetensors"
        can.append(f"computekit convert {path} {target}{trust}")
    optimizer = sum(entry["bytes"] for entry in report["other_content"] if entry["optimizer"])
    if optimizer:
        share = optimizer / report["file_bytes"]
        can.append(f"computekit convert {path} smaller.pt --strip-optimizer{trust} saves {share:.0%} of the file")
    if source.arch is not None:
        can.append(f"computekit benchmark {path}{trust}: the file knows its architecture ({source.arch['name']})")
    elif source.format in ("torchscript", "pt2"):
        needed = " --trust-pickle" if source.format == "pt2" else ""  # torch unpickles parts of it to run it
        can.append(f"computekit benchmark {path}{needed}: the file holds its own program")
    else:
        can.append("running it needs its code: --arch package.module:callable")
    return can
