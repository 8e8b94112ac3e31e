"""A trace of a few training steps. Importing this imports torch."""

from __future__ import annotations

from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, schedule

from .. import files

WAIT, WARM_UP, ACTIVE = 2, 1, 8
"""Steps before, steps in which the profiler warms up, and steps that are traced."""

TRACED_STEPS = WAIT + WARM_UP + ACTIVE
"""Steps that a run must have for a whole trace."""


class Trace:
    """Profiles ``ACTIVE`` steps of a run and writes them to ``path`` in Chrome's trace format (ui.perfetto.dev)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.table = ""
        cuda = torch.cuda.is_available()
        self.sort_by = f"self_{'cuda' if cuda else 'cpu'}_time_total"
        self.profiler = profile(
            activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])],
            schedule=schedule(wait=WAIT, warmup=WARM_UP, active=ACTIVE, repeat=1),
            on_trace_ready=self._write,
        )
        self.profiler.start()

    def step(self) -> None:
        """Say that a step has ended."""
        self.profiler.step()

    def stop(self) -> None:
        """End the profiling; a run of too few steps leaves a trace of those that there were."""
        self.profiler.stop()

    def _write(self, profiler: profile) -> None:
        with files.atomic(self.path) as temporary:
            profiler.export_chrome_trace(str(temporary))
        averages = profiler.key_averages()
        self.table = averages.table(sort_by=self.sort_by, row_limit=15, max_name_column_width=40)
