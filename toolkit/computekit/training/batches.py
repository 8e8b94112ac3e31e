"""Shuffled batches that can stop anywhere and go on. Importing this imports torch."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..datasets import Split
from .augment import draw_offsets, shift

_AHEAD = 2
"""Batches that each worker may be ahead of the training: more would only take memory."""


@dataclass(frozen=True)
class _Order:
    """One batch to make: which samples, how far to shift each, and the random generator's state after drawing that."""

    chosen: Tensor
    offsets: Tensor | None
    generator: Tensor


class Batches:
    """Batches of one split, in a new order each epoch, from a random generator that nothing else draws from.

    A last batch of fewer than ``least`` samples is left out. ``workers`` threads make batches ready ahead of time; what
    is random is drawn in order before that, so the batches are the same for any number of them. ``pinned`` puts them
    into page-locked memory, from which a device copies while it computes.
    """

    def __init__(
        self, split: Split, batch_size: int, shifted: bool, seed: int, least: int, *, workers: int = 0,
        pinned: bool = False,
    ) -> None:  # fmt: skip
        self.split, self.batch_size, self.shifted, self.pinned = split, batch_size, shifted, pinned
        self.pool = ThreadPoolExecutor(workers, thread_name_prefix="batches") if workers else None
        self.ahead = _AHEAD * workers
        self.generator = torch.Generator().manual_seed(seed)
        full, rest = divmod(len(split), batch_size)
        self.count = max(1, full + (rest >= least))
        self.order: Tensor | None = None
        self.position = 0
        self.drawn = self.generator.get_state()  # when the last batch that was handed out had been drawn

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """The rest of the epoch that has begun, or a new one; (inputs, targets) on the CPU."""
        if self.order is None:
            self.order, self.position = torch.randperm(len(self.split), generator=self.generator), 0
        for order, batch in self._made(self._orders(self.order)):
            self.position += 1
            self.drawn = order.generator
            yield batch
        self.order = None

    def _orders(self, order: Tensor) -> Iterator[_Order]:
        for position in range(self.position, self.count):
            chosen = order[position * self.batch_size : (position + 1) * self.batch_size]
            offsets = draw_offsets(self.split.inputs, len(chosen), self.generator) if self.shifted else None
            yield _Order(chosen, offsets, self.generator.get_state())

    def _made(self, orders: Iterator[_Order]) -> Iterator[tuple[_Order, tuple[Tensor, Tensor]]]:
        """Each order with its batch, in order."""
        if self.pool is None:
            for order in orders:
                yield order, self._make(order)
            return
        waiting: deque[tuple[_Order, Future[tuple[Tensor, Tensor]]]] = deque()
        for order in orders:
            waiting.append((order, self.pool.submit(self._make, order)))
            if len(waiting) > self.ahead:
                first, batch = waiting.popleft()
                yield first, batch.result()
        for order, batch in waiting:
            yield order, batch.result()

    def _make(self, order: _Order) -> tuple[Tensor, Tensor]:
        inputs, targets = self.split.inputs[order.chosen], self.split.targets[order.chosen]
        if order.offsets is not None:
            inputs = shift(inputs, order.offsets)
        return (inputs.pin_memory(), targets.pin_memory()) if self.pinned else (inputs, targets)

    def close(self) -> None:
        """Stop the workers; the batches that they have made ready are forgotten."""
        if self.pool:
            self.pool.shutdown(cancel_futures=True)

    def state(self) -> dict[str, Any]:
        """Where in the epoch it is, as plain data and tensors."""
        return {"order": self.order, "position": self.position, "generator": self.drawn}

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on where ``state`` was taken."""
        self.order, self.position, self.drawn = state["order"], state["position"], state["generator"]
        self.generator.set_state(self.drawn)
