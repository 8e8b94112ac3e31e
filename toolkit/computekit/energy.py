"""Energy from counters: RAPL for processors (Linux powercap), NVML for NVIDIA cards. No counter, no number."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

POWERCAP = Path("/sys/class/powercap")


class NoCounter(Exception):
    """Energy cannot be measured here; the text says why."""


def counter(device_kind: str, index: int = 0) -> Callable[[], float]:
    """A function that reads the joules counted so far for a device of ``device_kind``.

    Raises:
        NoCounter: there is none, or it cannot be read.
    """
    if device_kind == "cuda":
        return _nvml(index)
    if device_kind == "cpu":
        return _rapl(POWERCAP)
    raise NoCounter(f"no energy counter is known for {device_kind}")


class Span:
    """The joules that a device takes from the creation of this to `end`; ``reason`` says why there are none."""

    def __init__(self, device_kind: str, index: int = 0) -> None:
        self.joules: float | None = None
        self.reason = "the span has not ended"
        try:
            self._read: Callable[[], float] | None = counter(device_kind, index)
            self._begin = self._read()
        except NoCounter as reason:
            self._read, self.reason = None, str(reason)

    def end(self) -> None:
        """Read the counter again."""
        if self._read is not None:
            self.joules = self._read() - self._begin


def _rapl(root: Path) -> Callable[[], float]:
    """Sum of the package domains; a counter that wraps is continued with its own range."""
    packages = sorted(p for p in root.glob("intel-rapl:*") if p.name.count(":") == 1)
    if not packages:
        raise NoCounter("this machine shows no RAPL counter")
    try:
        ranges = [int((p / "max_energy_range_uj").read_text()) for p in packages]
        last = [int((p / "energy_uj").read_text()) for p in packages]
    except (OSError, ValueError) as error:
        raise NoCounter(f"the RAPL counter cannot be read ({type(error).__name__})") from error
    total = [0]

    def read() -> float:
        for i, package in enumerate(packages):
            now = int((package / "energy_uj").read_text())
            total[0] += (now - last[i]) % (ranges[i] + 1)
            last[i] = now
        return total[0] / 1e6

    return read


def _nvml(index: int) -> Callable[[], float]:
    try:
        pynvml: Any = importlib.import_module("pynvml")
    except ImportError:
        raise NoCounter("nvidia-ml-py is not installed (pip install 'computekit[gpu]')") from None
    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    except pynvml.NVMLError as error:
        raise NoCounter(f"NVML gives no energy counter ({error})") from error
    return lambda: float(pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)) / 1e3
