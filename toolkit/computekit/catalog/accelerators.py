"""The hardware catalog: dense peak rates, memory and power of accelerators, by name."""

from __future__ import annotations

import re
from pathlib import Path

from .. import host
from ..contracts import PEAK_DTYPES, Hardware
from ..errors import AmbiguousName, ComputekitError, UnknownName
from .measured import from_record
from .tables import number, read


class NoPeak(ComputekitError):
    """A device that has no dense peak in FLOP/s, so that nothing can be computed from one."""

    def __init__(self, name: str, reason: str, source: str) -> None:
        super().__init__(name, reason, source)
        self.name, self.reason, self.source = name, reason, source

    def __str__(self) -> str:
        return f"{self.name} is not in the hardware catalog: {self.reason} (source: {self.source})"


def shipped() -> list[Hardware]:
    """The rows of data/hardware.csv."""
    return [_row(cells) for cells in read("hardware.csv")]


def hardware() -> list[Hardware]:
    """All rows, shipped ones first; of two rows with one name the later one, a plugin's, is kept."""
    return list({row.name: row for row in host.current().hardware}.values())


def find_hardware(name: str) -> Hardware:
    """The row called ``name``, in any spelling of case and punctuation.

    Names are the catalog's own ("H100-SXM5-80GB") and the aliases, among them what ``torch.cuda.get_device_name()``
    prints ("NVIDIA H100 80GB HBM3"). The file of a device record (``computekit benchmark device``) stands for the
    device with its measured rates.

    Raises:
        FileProblem: the file is not a device record.
        UnknownName: nothing is called so.
        AmbiguousName: a part of several names ("H100").
        NoPeak: a known device without a dense peak rate.
    """
    if name.endswith(".json"):
        return from_record(Path(name))
    rows = hardware()
    wanted = _plain(name)
    for row in reversed(rows):
        if wanted in map(_plain, (row.name, *row.aliases)):
            host.current().takes_part(row)
            return row
    for cells in read("without_peak.csv"):
        if wanted in map(_plain, (cells["name"], *_list(cells["aliases"]))):
            raise NoPeak(cells["name"], cells["reason"], cells["source"])
    meant = [row.name for row in rows if wanted and wanted in _plain(row.name)]
    if len(meant) > 1:
        raise AmbiguousName("hardware", name, meant)
    raise UnknownName("hardware", name, meant or [row.name for row in rows])


def _row(cells: dict[str, str]) -> Hardware:
    peaks = {dtype: float(cells[f"{dtype}_tflops"]) * 1e12 for dtype in PEAK_DTYPES if cells[f"{dtype}_tflops"]}
    interconnect = number(cells["interconnect_gb_s"])
    return Hardware(
        name=cells["name"],
        kind=cells["kind"],
        peak_flops=peaks,
        memory_bytes=float(cells["memory_gb"]) * 1e9,
        bandwidth_bytes_s=float(cells["bandwidth_gb_s"]) * 1e9,
        source=cells["source"],
        tdp_w=number(cells["tdp_w"]),
        aliases=_list(cells["aliases"]),
        vendor=cells["vendor"],
        notes=cells["notes"],
        year=int(cells["year"]),
        interconnect=cells["interconnect"],
        interconnect_bytes_s=None if interconnect is None else interconnect * 1e9,
        unverified=tuple(cells["unverified"].split()),
    )


def _list(cell: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in cell.split(";") if part.strip())


def _plain(name: str) -> str:
    """Lower case, without the maker and without punctuation."""
    return re.sub(r"^(nvidia|amd instinct|google|aws|intel)\b|[^a-z0-9]", "", name.strip().lower())
