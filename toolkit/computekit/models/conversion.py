"""Model files of one kind as another kind: number type, prefixes and what lies around the weights on the way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from .. import host
from ..contracts import ModelFormat
from ..errors import ComputekitError, FileProblem
from . import layout, program_files, raw
from .base import ModelFile, TensorInfo, Writer
from .formats import rewrite
from .huggingface import Folder, FolderWriter
from .pickles import Ordered
from .torch_files import TorchFile

_CHUNK = 1 << 18  # values that are worked on at a time: small enough for the cache
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class Conversion:
    """What to change on the way. ``part`` is one of several models in a checkpoint, such as ``ema``."""

    dtype: torch.dtype | None = None
    strip_prefixes: tuple[str, ...] = ()
    strip_optimizer: bool = False
    bare: bool = False
    part: str | None = None
    config: dict[str, Any] = field(default_factory=dict)


def kind_of(target: Path, folder: bool = False) -> ModelFormat:
    """The kind of file that ``target``'s name asks for; raises ComputekitError if it asks for none that is written.

    ``folder``: a model folder can be made, so a name with an ending that no kind has is one (``Model-3.1``).
    """
    known = {suffix: kind for kind in host.current().model_formats if kind.write for suffix in kind.suffixes}
    endings = [suffix for suffix in known if suffix and target.name.endswith(suffix)]
    if endings:
        return known[max(endings, key=len)]
    if not target.suffix or folder:
        return known[""]
    names = ", ".join(suffix for suffix in known if suffix)
    raise ComputekitError(f"{target}: no kind of model file is called {target.suffix}; known: {names}, or a folder")


def convert(source: ModelFile, target: Path, kind: ModelFormat, how: Conversion) -> None:
    """Write ``source`` to ``target`` as a file of ``kind``; checkpoints keep what lies around their weights.

    Raises:
        FileProblem: the file has no such part, prefix or optimizer; a value does not fit the number type.
    """
    if how.strip_optimizer:
        source = without_optimizer(source)
    if how.part is not None:
        source = Part(source, how.part)
    names = _renamed(source, how.strip_prefixes)

    def transform(info: TensorInfo, load: Callable[[], torch.Tensor]) -> list[tuple[str, torch.Tensor]] | None:
        if how.dtype is not None and info.dtype.is_floating_point and info.dtype != how.dtype:
            return [(names[info.name], _cast(source, info, how.dtype))]
        return None if names[info.name] == info.name else [(names[info.name], load())]

    metadata = {} if how.bare else program_files.without(source)
    rewrite(source, target, transform, metadata, _writer(source, target, kind, how), names)


def _check_complete(source: ModelFile) -> None:
    """Raise FileProblem if weights that are no ordinary tensors would be left behind: checkpoints alone keep them."""
    if isinstance(source, TorchFile):
        for name, kind in layout.unusual_weights(source.weights.values()):
            raise FileProblem(
                source.path, f"holds {name!r}, a {kind}", "only a checkpoint can keep that: write a .pt file"
            )


class Part(ModelFile):
    """One of several models in a checkpoint, under names without the part's own prefix."""

    def __init__(self, source: ModelFile, part: str) -> None:
        prefix = f"{part.rstrip('.')}."
        if prefix not in source.parts:
            known = ", ".join(name.rstrip(".") for name in source.parts if name) or "one model"
            raise FileProblem(source.path, f"holds no model called {part!r}", f"it holds {known}")
        super().__init__(source.path, source.format, source.metadata)
        self._source, self._prefix = source, prefix
        self._infos = {
            name.removeprefix(prefix): replace(info, name=name.removeprefix(prefix))
            for name, info in source.tensors.items()
            if name.startswith(prefix)
        }

    @property
    def tensors(self) -> dict[str, TensorInfo]:
        return self._infos

    def load(self, name: str) -> torch.Tensor:
        return self._source.load(self._prefix + name)

    def pieces(self, name: str, count: int) -> Iterator[torch.Tensor]:
        return self._source.pieces(self._prefix + name, count)


def without_optimizer(source: ModelFile) -> ModelFile:
    """``source`` without the states of optimizers, schedulers and gradient scalers; FileProblem if it has none.

    In a list None takes the place of a state, so that everything else stays where it was.
    """
    if isinstance(source, TorchFile) and isinstance(source.root, dict):
        kept = {key: value for key, value in source.root.items() if not layout.is_optimizer(str(key), value)}
        if len(kept) < len(source.root):
            kept = Ordered(kept) if isinstance(source.root, Ordered) else kept
            return TorchFile(source.path, source.format, root=kept, extents=source.extents)
    elif isinstance(source, TorchFile) and isinstance(source.root, (list, tuple)):
        root = [None if layout.is_optimizer("", item) else item for item in source.root]
        if any(new is not old for new, old in zip(root, source.root, strict=True)):
            return TorchFile(source.path, source.format, root=type(source.root)(root), extents=source.extents)
    raise FileProblem(source.path, "holds no optimizer state", "leave --strip-optimizer away")


def _renamed(source: ModelFile, prefixes: tuple[str, ...]) -> dict[str, str]:
    """What every tensor is called without ``prefixes``, which stand behind the name of the model in the checkpoint."""
    names, used = {}, set()
    for name in source.tensors:
        part = next(part for part in source.parts if name.startswith(part))
        rest = name.removeprefix(part)
        for prefix in prefixes:
            if rest.startswith(prefix):
                used.add(prefix)
                rest = rest.removeprefix(prefix)
        names[name] = part + rest
    for prefix in prefixes:
        if prefix not in used:
            raise FileProblem(
                source.path, f"has no names that begin with {prefix!r}", f"the first is {next(iter(names))!r}"
            )
    if len(set(names.values())) < len(names):
        raise FileProblem(source.path, "would have two tensors of the same name without its prefixes")
    return names


def _cast(source: ModelFile, info: TensorInfo, dtype: torch.dtype) -> torch.Tensor:
    """The tensor in another type, read in pieces; FileProblem if one of its values does not fit."""
    if raw.is_packed(info.dtype):
        problem = f"{info.name!r} holds packed 4-bit floats, which torch cannot convert"
        raise FileProblem(source.path, problem, "leave --dtype away")
    cast = torch.empty(info.numel, dtype=dtype)
    start = 0
    for piece in source.pieces(info.name, _CHUNK):
        part = cast[start : start + len(piece)].copy_(piece)
        start += len(piece)
        wide = piece.float() if piece.dtype.itemsize == 1 else piece  # torch tests no 8-bit floats
        if not bool(part.isfinite().all()) and bool((part.isinf() & wide.isfinite()).any()):
            raise FileProblem(source.path, f"{info.name!r} holds values beyond the range of fp16", "use --dtype bf16")
    return cast.reshape(info.shape)


def _writer(source: ModelFile, target: Path, kind: ModelFormat, how: Conversion) -> Writer:
    """A writer of ``kind`` that keeps what lies around the weights where the kinds allow it."""
    like = None if how.bare or how.part is not None else source
    if like is None or kind.name != "torch":
        _check_complete(source)
    if kind.name == "folder":
        folder = like if isinstance(like, Folder) else None
        if folder is None and not how.config:
            raise FileProblem(source.path, "has no configuration for a model folder", "give one with --config")
        config = dict(how.config)
        if how.dtype is not None:
            spelled = {"dtype", "torch_dtype"} & set(folder.config if folder else config) or {"dtype"}
            config |= dict.fromkeys(sorted(spelled), str(how.dtype).removeprefix("torch."))
        return FolderWriter(folder, target, config)
    assert kind.write is not None
    return kind.write(like, target)
