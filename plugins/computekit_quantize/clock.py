"""The time that a run may take."""

from __future__ import annotations

import math
import time


class Deadline:
    """Counts from its making; ``budget`` is in seconds, None for ever.

    What comes after the search (writing, measuring) takes about as long as what prepares it (reading, measuring), so
    that much is set aside: `begin_search` gets those seconds.
    """

    def __init__(self, budget: float | None) -> None:
        self.budget = math.inf if budget is None else budget
        self._started = time.monotonic()
        self._reserve = 0.0

    def begin_search(self, prepared: float) -> None:
        """The search begins, which took ``prepared`` seconds to prepare."""
        self._reserve = prepared

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._started

    @property
    def left(self) -> float:
        """Seconds that the search may still take; below 0 if it is late, infinite without a budget."""
        return self.budget - self._reserve - self.elapsed
