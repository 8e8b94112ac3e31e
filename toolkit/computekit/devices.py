"""Devices: choosing one, naming it honestly, and making runs on it repeatable."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import ComputekitError

if TYPE_CHECKING:
    import torch

    from .records import Device


class DeviceUnavailable(ComputekitError):
    """A device was asked for that this machine does not have."""

    def __init__(self, name: str, available: list[str], why: str = "") -> None:
        super().__init__(name, available, why)
        self.name, self.available, self.why = name, available, why

    def __str__(self) -> str:
        because = f" ({self.why})" if self.why else ""
        return f"device {self.name!r} is not available{because}; available: auto, {', '.join(self.available)}"


def available() -> list[str]:
    """Names that ``--device`` takes on this machine, the preferred one first."""
    import torch

    names = [f"cuda:{i}" for i in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    if torch.backends.mps.is_available():
        names.append("mps")
    return [*names, "cpu"]


def resolve(name: str = "auto") -> torch.device:
    """The device called ``name``; ``auto`` is the first CUDA device, else MPS, else the CPU."""
    import torch

    names = available()
    if name == "auto":
        return torch.device(names[0])
    wanted = "cuda:0" if name == "cuda" else name
    if wanted not in names:
        why = "this torch is built without CUDA" if name.startswith("cuda") and torch.version.cuda is None else ""
        raise DeviceUnavailable(name, names, why)
    return torch.device(wanted)


def describe(device: torch.device) -> Device:
    """What a record says about a device: its own name, threads and memory."""
    import psutil
    import torch

    from .records import Device

    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        return Device(kind="cuda", name=properties.name, memory_bytes=properties.total_memory)
    return Device(
        kind=device.type,
        name=cpu_name(),
        threads=torch.get_num_threads(),
        memory_bytes=psutil.virtual_memory().total,
    )


def cpu_name() -> str:
    """The processor's model name as the system gives it."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith(("model name", "Model")) and ":" in line:
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def synchronize(device: torch.device) -> None:
    """Wait until the device has done all work that was queued; nothing on the CPU."""
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def is_out_of_memory(error: BaseException) -> bool:
    """Whether ``error`` is a device's or the CPU allocator's complaint that memory is used up."""
    import torch

    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or (
        isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
    )


def make_repeatable(seed: int, threads: int | None = None) -> None:
    """Seed Python, NumPy and torch, ask torch for deterministic algorithms, and fix the number of CPU threads.

    Float sums depend on how many threads share them, so the same bytes need the same ``threads``.
    """
    import random

    import numpy
    import torch

    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    if threads is not None:
        torch.set_num_threads(threads)
    random.seed(seed)
    numpy.random.seed(seed % 2**32)
    torch.manual_seed(seed)
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.benchmark = False
