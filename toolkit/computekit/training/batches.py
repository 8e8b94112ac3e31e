"""Shuffled batches that can stop anywhere and go on. Importing this imports torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ..datasets import Split
from .augment import shift


class Batches:
    """Batches of one split, in a new order each epoch, from a random generator that nothing else draws from.

    A last batch of fewer than ``least`` samples is left out.
    """

    def __init__(self, split: Split, batch_size: int, shifted: bool, seed: int, least: int) -> None:
        self.split, self.batch_size, self.shifted = split, batch_size, shifted
        self.generator = torch.Generator().manual_seed(seed)
        full, rest = divmod(len(split), batch_size)
        self.count = max(1, full + (rest >= least))
        self.order: Tensor | None = None
        self.position = 0

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """The rest of the epoch that has begun, or a new one; (inputs, targets) on the CPU."""
        if self.order is None:
            self.order, self.position = torch.randperm(len(self.split), generator=self.generator), 0
        while self.position < self.count:
            start = self.position * self.batch_size
            chosen = self.order[start : start + self.batch_size]
            self.position += 1
            inputs = self.split.inputs[chosen]
            yield shift(inputs, self.generator) if self.shifted else inputs, self.split.targets[chosen]
        self.order = None

    def state(self) -> dict[str, Any]:
        """Where in the epoch it is, as plain data and tensors."""
        return {"order": self.order, "position": self.position, "generator": self.generator.get_state()}

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on where ``state`` was taken."""
        self.order, self.position = state["order"], state["position"]
        self.generator.set_state(state["generator"])
