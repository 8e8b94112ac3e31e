"""A device record in the place of a catalog row, so that estimates can use measured rates."""

from __future__ import annotations

from pathlib import Path

from ..contracts import PEAK_DTYPES, Hardware
from ..errors import FileProblem


def from_record(path: Path) -> Hardware:
    """The device that the record ``path`` of ``computekit benchmark device`` describes.

    Quantities: ``peak_DTYPE_flops``, ``copy_bandwidth_bytes_s``, ``memory_bytes``, ``launch_latency_s`` and,
    from torchrun, ``allreduce_bytes_s`` (one way, so that both directions are twice that).

    Raises:
        FileProblem: the file is no such record, or lacks a bandwidth or the memory.
    """
    from .. import records

    record = records.load(path)
    row = next((row for row in record.rows if "copy_bandwidth_bytes_s" in row.quantities), None)
    if row is None:
        raise FileProblem(path, "is not a device record", "make one with: computekit benchmark device -o FILE")
    known = {key: float(q.value) for key, q in row.quantities.items() if isinstance(q.value, (int, float))}
    if not {"copy_bandwidth_bytes_s", "memory_bytes"} <= known.keys():
        raise FileProblem(path, "is a device record without bandwidth or memory")
    all_reduce = known.get("allreduce_bytes_s")
    return Hardware(
        name=row.label,
        kind="gpu" if record.device is not None and record.device.kind == "cuda" else "cpu",
        peak_flops={dtype: known[key] for dtype in PEAK_DTYPES if (key := f"peak_{dtype}_flops") in known},
        memory_bytes=known["memory_bytes"],
        bandwidth_bytes_s=known["copy_bandwidth_bytes_s"],
        source=f"measured, {path.name}",
        interconnect_bytes_s=None if all_reduce is None else 2 * all_reduce,
        launch_s=known.get("launch_latency_s"),
    )
