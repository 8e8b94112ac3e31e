"""What happens to which tensor: decided from the file's header, before any weight is read."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from computekit import UnknownName
from computekit.models import ModelFile, TensorInfo, roles

from . import huggingface
from .schemes import Scheme


@dataclass(frozen=True)
class Decision:
    """The fate of one tensor, under all the names that it is tied to.

    ``kept`` is why it stays as it is, empty if it will be quantized; ``bytes_after`` is what it will take in the file.
    """

    info: TensorInfo
    names: tuple[str, ...]
    role: roles.Role
    kept: str
    bytes_after: int

    @property
    def quantized(self) -> bool:
        return not self.kept

    @property
    def saved(self) -> int:
        """Bytes that quantizing this tensor saves."""
        return self.info.nbytes - self.bytes_after


@dataclass(frozen=True)
class Request:
    """What to do with weights, and with which.

    ``activations`` is "float", or "dynamic" for linear layers that round their inputs to 8 bits, a scale per token.
    ``include`` and ``exclude`` are shell patterns over tensor names; exclusion wins.
    """

    scheme: Scheme
    group: int | None
    activations: str = "float"
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()


def make(source: ModelFile, request: Request) -> list[Decision]:
    """One decision per tensor of ``source``, in file order; tied names share one.

    Raises:
        UnknownName: a pattern matches no tensor.
    """
    tensors = source.tensors
    for pattern in (*request.include, *request.exclude):
        if not fnmatch.filter(tensors, pattern):
            raise UnknownName("tensor", pattern, tensors, "(patterns: * matches any characters)")
    in_folder = huggingface.is_folder(source)
    return [_decide(names, tensors, request, in_folder) for names in _tied(tensors)]


def _decide(names: tuple[str, ...], tensors: Mapping[str, TensorInfo], request: Request, in_folder: bool) -> Decision:
    from computekit.models import compressed

    info = tensors[names[0]]
    every = [roles.of(tensors[name], tensors) for name in names]
    role = next((role for role in every if role in roles.WEIGHTS), every[0])
    matrix = len(info.shape) > 1 and info.numel > 0
    after = compressed.stored_bytes(info.shape, info.dtype, request.group, request.scheme.bits) if matrix else 0
    kept = ""
    if not info.dtype.is_floating_point or info.dtype.itemsize < 2:
        kept = f"{str(info.dtype).removeprefix('torch.')} values"
    elif not matrix:
        kept = "a vector" if len(info.shape) == 1 and info.numel else "a single number" if info.numel else "empty"
    elif _matches(names, request.exclude):
        kept = "excluded"
    elif role not in roles.WEIGHTS and not _matches(names, request.include):
        kept = "ambiguous (--include quantizes it)" if role == "ambiguous" else f"{role} tensor"
    elif after >= info.nbytes:
        kept = "would not be smaller"
    elif in_folder:
        kept = huggingface.unreadable(info, request.group)
    return Decision(info, names, role, kept, info.nbytes if kept else after)


def _tied(tensors: Mapping[str, TensorInfo]) -> list[tuple[str, ...]]:
    """Names grouped by the bytes that they share."""
    groups: dict[object, list[str]] = {}
    for name, info in tensors.items():
        groups.setdefault(name if info.storage is None else ("storage", info.storage), []).append(name)
    return [tuple(group) for group in groups.values()]


def _matches(names: Sequence[str], patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for name in names for pattern in patterns)
