"""What every model format offers: a list of tensors that are read one at a time, and a writer of the same kind."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class TensorInfo:
    """One weight tensor as the file's header describes it; nothing of its data has been read.

    ``name`` is the name inside the state_dict, as the file spells it (prefixes such as ``module.`` included). Two
    tensors with equal ``storage`` are tied: they are the same bytes under two names.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    nbytes: int
    storage: Hashable = None

    @property
    def numel(self) -> int:
        count = 1
        for size in self.shape:
            count *= size
        return count


@dataclass
class ModelFile(ABC):
    """An open model file. ``metadata`` is what computekit keeps in it (architecture, compression, ...)."""

    path: Path
    format: str
    metadata: dict[str, Any] = field(default_factory=dict)

    @property
    @abstractmethod
    def tensors(self) -> dict[str, TensorInfo]:
        """The model's weights by name, in file order; optimizer state and other tensors are not among them."""

    @abstractmethod
    def load(self, name: str) -> torch.Tensor:
        """Read one tensor into memory of its own (CPU); memory follows this one tensor."""


class Writer(ABC):
    """Writes a model file of one kind, tensor by tensor; a context manager that completes the file on success."""

    @abstractmethod
    def add(self, name: str, tensor: torch.Tensor) -> None:
        """Append a tensor; it may be freed afterwards."""

    @abstractmethod
    def tie(self, name: str, other: str) -> None:
        """Make ``name`` share the tensor that was added as ``other``."""

    @abstractmethod
    def finish(self, metadata: dict[str, Any]) -> None:
        """Write what must come last; ``metadata`` replaces the source's."""

    def __enter__(self) -> Writer:
        return self

    @abstractmethod
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...
