"""Memory of this process: what it holds now, and the peak since the last reset.

The peak that the kernel keeps (VmHWM, ru_maxrss) never goes down by itself; writing 5 to /proc/self/clear_refs resets
it (Linux >= 4.0, no privilege needed; see proc(5)).
"""

from __future__ import annotations

import ctypes
import gc
from pathlib import Path


def can_reset_peak() -> bool:
    """Whether this system lets a process reset its own peak."""
    return Path("/proc/self/clear_refs").exists()


def reset_peak() -> None:
    """Make the peak start again from what the process holds now."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def peak_bytes() -> int:
    """Largest resident set since the last reset."""
    return _status_bytes("VmHWM")


def resident_bytes() -> int:
    """Resident set now."""
    return _status_bytes("VmRSS")


def settle() -> None:
    """Free what nobody refers to and give free heap pages back, so that two readings can be compared."""
    gc.collect()
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError):
        return  # another C library; its free pages stay counted


def _status_bytes(field: str) -> int:
    for line in Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise LookupError(f"/proc/self/status has no {field}")
