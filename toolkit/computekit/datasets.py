"""Data sets: real, small, offline, with splits that are fixed before any choice is made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from .contracts import Dataset

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Split:
    """``inputs`` (N, ...) and ``targets`` (N,) for classification, or (N, T) token ids for language modelling."""

    inputs: torch.Tensor
    targets: torch.Tensor


@dataclass(frozen=True)
class Data:
    """A data set. Choices (early best, calibration, search) use ``validation``; ``test`` is only ever reported."""

    name: str
    task: Literal["classification", "language-modeling"]
    train: Split
    validation: Split
    test: Split
    classes: int
    source: str


def load_data(name: str) -> Data:
    """The data set called ``name``: a registered name, a .npz or .txt file, or ``module:callable``."""
    from . import host
    from .errors import UnknownName

    known = host.current().datasets
    if name not in known:
        raise UnknownName("data set", name, known)
    return known[name].load()


BUILTIN: tuple[Dataset, ...] = ()
