"""What every model format offers: a list of tensors that are read one at a time, and a writer of the same kind."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import nn


@dataclass(frozen=True)
class TensorInfo:
    """One weight tensor as the file's header describes it; nothing of its data has been read.

    ``name`` is the name inside the state_dict, as the file spells it (prefixes such as ``module.`` included). Two
    tensors with equal ``storage`` are tied: they are the same bytes under two names. ``nbytes`` is what the file
    spends on it. ``encoding`` names a quantization of the file's own (GGUF's ``Q4_1``) that reading undoes; ``dtype``
    is what `ModelFile.load` gives. ``role`` is what the file's code says that the tensor is, as `roles` calls it; a
    weight that is ``transposed`` has its outputs last.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    nbytes: int
    storage: Hashable = None
    encoding: str = ""
    role: str = ""
    transposed: bool = False

    @property
    def outputs_first(self) -> tuple[int, ...]:
        """The shape of a weight as its grid needs it: (out, ...)."""
        return self.shape[::-1] if self.transposed else self.shape

    @property
    def numel(self) -> int:
        return math.prod(self.shape)


@dataclass
class ModelFile(ABC):
    """An open model file. ``metadata`` is what computekit keeps in it (architecture, compression, ...).

    ``parts`` are the name prefixes of the models that the file holds: one empty prefix for most files; ``model.`` and
    ``ema.`` for a checkpoint that keeps both.
    """

    path: Path
    format: str
    metadata: dict[str, Any] = field(default_factory=dict)
    parts: tuple[str, ...] = ("",)

    @property
    def arch(self) -> dict[str, Any] | None:
        """The architecture that the file remembers, as ``{"name": ..., "args": {...}}``."""
        found = self.metadata.get("arch")
        fits = isinstance(found, dict) and isinstance(found.get("name"), str) and isinstance(found.get("args"), dict)
        return found if fits else None

    def beside(self, tag: str) -> Path:
        """Where a step writes its result by default: ``model.pt`` becomes ``model-TAG.pt``."""
        return self.path.with_stem(f"{self.path.stem}-{tag}")

    def program(self, trust_pickle: bool) -> nn.Module | None:
        """The module that the file itself can be run as; None if it holds weights without code.

        Raises:
            FileProblem: running it would run what a pickle says, and ``trust_pickle`` is not given.
        """
        return None

    @property
    @abstractmethod
    def tensors(self) -> dict[str, TensorInfo]:
        """The model's weights by name, in file order; optimizer state and other tensors are not among them."""

    @abstractmethod
    def load(self, name: str) -> torch.Tensor:
        """Read one tensor into memory of its own (CPU, contiguous); memory follows this one tensor."""

    def pieces(self, name: str, count: int) -> Iterator[torch.Tensor]:
        """One tensor in row-major order, ``count`` values at a time (the last time perhaps fewer): 1-D tensors.

        Each is gone when the next one comes, so that what works on pieces that fit the processor's cache never waits
        for fresh memory. An empty tensor has none.
        """
        whole = self.load(name).reshape(-1)
        for start in range(0, whole.numel(), count):
            yield whole[start : start + count]


class Writer(ABC):
    """Writes a model file of one kind, tensor by tensor; a context manager that closes the file in any case.

    ``like`` is the name of the source's tensor whose place the new one takes. ``source`` is the file of the same kind
    that the new one resembles, if there is one.
    """

    source: ModelFile | None = None

    @abstractmethod
    def add(self, name: str, tensor: torch.Tensor, like: str) -> None:
        """Append a tensor; it may be freed afterwards."""

    @abstractmethod
    def keep(self, name: str) -> None:
        """Take over a tensor of the source unchanged, byte for byte."""

    @abstractmethod
    def tie(self, name: str, other: str, like: str) -> None:
        """Make ``name`` share the tensor that was added or kept as ``other``."""

    @abstractmethod
    def finish(self, metadata: dict[str, Any]) -> None:
        """Write what must come last; ``metadata`` replaces the source's."""

    @abstractmethod
    def close(self) -> None:
        """Release the file; called last, also after an error."""

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
