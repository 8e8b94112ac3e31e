"""Where the time of training goes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ..devices import synchronize


class Clock:
    """Seconds by part of the training loop; communication that a backward pass waited for is counted apart from it.

    Work on a device other than the CPU is queued, so its parts can only be told apart by waiting for it after each of
    them, which costs time of its own: ``exact`` does that. Without it, only ``total`` is right on such a device.
    """

    def __init__(self, device: torch.device, exact: bool) -> None:
        self.device = device
        self.exact = exact or device.type == "cpu"
        self.seconds: dict[str, float] = {}
        self.started = time.perf_counter()

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Add the time of the block to ``name``."""
        start = time.perf_counter()
        try:
            yield
        finally:
            if self.exact:
                synchronize(self.device)
            self.add(name, time.perf_counter() - start)

    def add(self, name: str, seconds: float) -> None:
        """Add ``seconds`` to ``name``."""
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds

    def restart(self) -> None:
        """Forget what was measured and start now."""
        self.seconds.clear()
        self.started = time.perf_counter()

    def total(self) -> float:
        """Seconds since the start."""
        synchronize(self.device)
        return time.perf_counter() - self.started

    def training(self) -> float:
        """Seconds since the start that neither validation nor checkpoints took."""
        return self.total() - self.seconds.get("validation", 0.0) - self.seconds.get("checkpoint", 0.0)
