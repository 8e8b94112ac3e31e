"""How noisy the machine was while something was measured: other load, stolen time, frequency, throttling."""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path
from typing import Any

_CPU = Path("/sys/devices/system/cpu")


class Watch:
    """Looks at the machine's counters when made and again in `report`."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._times = _cpu_times()
        self._own = _own_cpu_s()
        self._throttled = _throttle_counts()

    def report(self) -> dict[str, Any]:
        """What happened since: shares are of all cores; a key that this system does not tell is absent."""
        import psutil

        elapsed = time.monotonic() - self._began
        cores = os.cpu_count() or 1
        report: dict[str, Any] = {"seconds": round(elapsed, 1), "cores": cores}
        if hasattr(os, "getloadavg"):
            report["load_average_1min"] = round(os.getloadavg()[0], 2)
        times = _cpu_times()
        spent = {name: times[name] - self._times[name] for name in times}
        total = sum(spent.values())
        if total > 0:
            idle = spent.get("idle", 0.0) + spent.get("iowait", 0.0)
            own = _own_cpu_s() - self._own
            others = total - idle - spent.get("steal", 0.0) - own
            report["other_processes_share"] = round(max(0.0, others / total), 3)
            if "steal" in spent:
                report["steal_share"] = round(spent["steal"] / total, 4)
        try:
            frequency = psutil.cpu_freq()
        except (OSError, NotImplementedError):
            frequency = None
        if frequency is not None and frequency.current:
            report["frequency_mhz"] = round(frequency.current)
        throttled = _throttle_counts()
        if throttled:
            report["throttle_events"] = sum(throttled.values()) - sum(self._throttled.values())
        return report


def sentence(report: dict[str, Any]) -> str:
    """The report as one line for a person, with a warning where the machine was shared or throttled."""
    parts = []
    if "load_average_1min" in report:
        parts.append(f"load {report['load_average_1min']:g} on {report['cores']} cores")
    if "other_processes_share" in report:
        parts.append(f"other processes took {100 * report['other_processes_share']:.0f} % of the CPU")
    if "steal_share" in report:
        parts.append(f"steal {100 * report['steal_share']:.1f} %")
    if "frequency_mhz" in report:
        parts.append(f"{report['frequency_mhz']} MHz")
    if "throttle_events" in report:
        parts.append(f"{report['throttle_events']} throttle events")
    text = "machine: " + ", ".join(parts)
    if report.get("other_processes_share", 0) > 0.1 or report.get("steal_share", 0) > 0.02:
        text += "; it was shared, so expect wide intervals (--clock cpu is steadier)"
    return text


def _cpu_times() -> dict[str, float]:
    """Seconds by state over all cores; guest time is left out because it is already part of user time."""
    import psutil

    times = psutil.cpu_times()._asdict()
    return {name: value for name, value in times.items() if not name.startswith("guest")}


def _own_cpu_s() -> float:
    """CPU seconds of this process and of those it started and waited for."""
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def _throttle_counts() -> dict[str, int]:
    """Thermal throttle events by core, and the periods in which the container's CPU quota ran out."""
    counts = {}
    for file in _CPU.glob("cpu[0-9]*/thermal_throttle/core_throttle_count"):
        try:
            counts[str(file)] = int(file.read_text(encoding="ascii"))
        except (OSError, ValueError):
            continue
    try:
        for line in Path("/sys/fs/cgroup/cpu.stat").read_text(encoding="ascii").splitlines():
            if line.startswith("nr_throttled "):
                counts["cgroup"] = int(line.split()[1])
    except OSError:
        return counts
    return counts
