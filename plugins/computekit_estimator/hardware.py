"""The device that an estimate is for: catalog figures plus what a kernel model needs to know.

The catalog has peaks, memory, bandwidth, links and power. Streaming multiprocessors (for wave quantisation), the share
of the peak that clocks sustain, and the usual cluster network of a generation are here, each a property of the part.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from computekit import ComputekitError, Hardware

from .constants import CONSTANTS, Constants

_UNITS = {
    "V100": 80, "T4": 40, "A10": 72, "A10G": 80, "A30": 56, "A40": 84, "RTX-A6000": 84, "A100": 108, "L4": 58,
    "L40": 142, "L40S": 142, "H100-PCIe": 114, "H100": 132, "H200": 132, "GH200": 132, "H800": 132, "H20": 78,
    "B200": 148, "B300": 148, "GB200": 148, "GB300": 148, "RTX-3090": 82, "RTX-4090": 128, "RTX-5090": 170,
    "RTX-6000-Ada": 142, "RTX-PRO-6000": 188, "MI210": 104, "MI250X": 220, "MI300X": 304, "MI300A": 228,
    "MI325X": 304, "MI350X": 256, "MI355X": 256,
}  # fmt: skip
"""Streaming multiprocessors (compute units) by family, from the vendors' architecture white papers."""

_FALLBACK_UNITS = 100
_CACHE_MB = {
    "V100": 6, "T4": 4, "A10": 6, "A10G": 6, "A30": 24, "A40": 6, "RTX-A6000": 6, "A100": 20, "L4": 48, "L40": 96,
    "L40S": 96, "H100": 50, "H200": 50, "GH200": 50, "H800": 50, "H20": 50, "B200": 126, "B300": 126, "GB200": 126,
    "GB300": 126, "RTX-3090": 6, "RTX-4090": 72, "RTX-5090": 96, "RTX-6000-Ada": 96, "RTX-PRO-6000": 128,
    "MI210": 8, "MI250X": 8, "MI300X": 256, "MI300A": 256, "MI325X": 256, "MI350X": 256, "MI355X": 256,
}  # fmt: skip
"""Last-level cache by family, from the same papers; of the A100's two halves each sees its own 20 MB fast."""
_PROCESSOR_CACHE_MB = 16
"""What one task usually gets of a server processor's last-level cache."""
_BETWEEN_PODS = 3.3e9
"""Bytes/s of each chip between pods: 81 Tbit/s between two pods of 3072 (PaLM, arXiv:2204.02311, section 4)."""
_COPY = 0.9
"""Share of the nominal memory rate that a plain copy reaches, the best that can be measured."""
_HBM_VARIANTS = {("H100", "HBM2E"): 2.4e12}
"""Memory bandwidth of parts that were sold with another memory than the catalog's row, in bytes/s."""


_NODE = 8
_DOMAIN = {
    "GB200": 72, "GB300": 72,
    "TPU-v2": 512, "TPU-v3": 1024, "TPU-v4": 4096, "TPU-v5e": 256, "TPU-v5p": 8960, "TPU-v6e": 256, "TPU7x": 9216,
}  # fmt: skip
"""Devices that the fast links connect where it is not a node of eight: an NVL72 rack, the torus of a TPU pod."""


@dataclass(frozen=True)
class Gpu:
    """One device in its node and cluster; rates in FLOP/s and bytes/s, link rates one way for each device."""

    name: str
    peak_flops: Mapping[str, float]
    memory_bytes: float
    memory_rate: float
    units: int
    year: int
    node_rate: float
    network_rate: float
    node_gpus: int = _NODE
    tdp_w: float | None = None
    power_w: float | None = None
    measured: bool = False
    kind: str = "gpu"
    cache_bytes: float = 0.0
    launch_s: float | None = None

    def peak(self, precision: str) -> float:
        """Dense peak of ``precision`` in FLOP/s; raises ComputekitError where the device has none."""
        if precision == "bf16" and precision not in self.peak_flops and "fp16" in self.peak_flops and self.year < 2020:
            raise ComputekitError(f"{self.name} has no bf16 units; use fp16")
        if precision not in self.peak_flops:
            raise ComputekitError(
                f"the catalog has no {precision} peak of {self.name}; it has {', '.join(sorted(self.peak_flops))}"
            )
        return self.peak_flops[precision]

    def traffic_rate(self, constants: Constants = CONSTANTS) -> float:
        """Bytes/s that element-wise kernels really move."""
        if self.measured:
            return self.memory_rate
        return self.memory_rate * (constants.memory_until_2022 if self.year < 2022 else constants.memory_since_2022)

    def sustained(self, precision: str, constants: Constants = CONSTANTS) -> float:
        """The rate that large products really reach: the peak, less what power and clocks take."""
        if self.measured:
            return self.peak(precision)
        if self.kind == "tpu":
            return self.peak(precision) * constants.sustained_fixed
        share = constants.sustained_until_2022 if self.year < 2022 else constants.sustained_since_2022
        if self.power_w and self.tdp_w and self.power_w < self.tdp_w:
            share *= (self.power_w / self.tdp_w) ** constants.power_exponent
        return self.peak(precision) * share


def from_catalog(row: Hardware) -> Gpu:
    """The device of one catalog row, in the node and network its generation usually comes with."""
    year = row.year or 2020
    network = 12.5e9 if year < 2020 else 25e9 if year < 2022 else 50e9
    measured = row.source.startswith("measured")
    return Gpu(
        name=row.name,
        kind=row.kind,
        peak_flops=dict(row.peak_flops),
        memory_bytes=row.memory_bytes,
        memory_rate=row.bandwidth_bytes_s / (_COPY if measured else 1.0),
        # a systolic array has no waves of tiles
        units=1 if row.kind == "tpu" else _of_family(_UNITS, row.name, _FALLBACK_UNITS),
        year=year,
        node_rate=(row.interconnect_bytes_s or 32e9) / 2,
        network_rate=_BETWEEN_PODS if row.kind == "tpu" else network,
        node_gpus=_DOMAIN.get(row.name, _NODE),
        tdp_w=row.tdp_w,
        measured=measured,
        cache_bytes=1e6 * (_PROCESSOR_CACHE_MB if row.kind == "cpu" else _of_family(_CACHE_MB, row.name, 0)),
        launch_s=row.launch_s,
    )


def find(text: str, node_gpus: int | None = None, network_rate: float | None = None, *, published: bool = False) -> Gpu:
    """The device called ``text``: a name of the catalog, which may end in a power limit ("A100-SXM4-80GB-330W"), or
    the record of ``computekit benchmark device``.

    ``published`` also takes the spellings of published tables: parts in any order or left out ("H100-96GB-HBM2e"), a
    network ("A100-80GB-SXM(4xOPA100/node)").

    Raises:
        UnknownName, AmbiguousName: with the nearest names.
    """
    from computekit.catalog import find_hardware, hardware

    if text.endswith(".json"):
        return _placed(from_catalog(find_hardware(text)), node_gpus, network_rate)
    bare, _, about = text.partition("(")
    watts = re.search(r"-(\d+)W\b", bare)
    bare = re.sub(r"-\d+W\b", "", bare).strip()
    bare = re.sub(r"^\d+\s?x\s?(?=[A-Za-z])", "", bare) if published else bare  # "8xA100-80GB"
    try:
        gpu = from_catalog(find_hardware(bare))
    except ComputekitError:
        row = _loose(bare, hardware()) or _loose(about.rstrip(")"), hardware()) if published else None
        if row is None:
            raise
        gpu = from_catalog(row)
        size = re.search(r"(\d+)GB", bare)
        if size:
            gpu = replace(gpu, memory_bytes=float(size[1]) * 1e9)
        for (family, memory), rate in _HBM_VARIANTS.items():
            if family in bare and memory in bare.upper():
                gpu = replace(gpu, memory_rate=rate)
    if watts:
        gpu = replace(gpu, power_w=float(watts[1]))
    adapters = node_network(about)
    if adapters:
        gpu = replace(gpu, network_rate=adapters / gpu.node_gpus)
    return _placed(gpu, node_gpus, network_rate)


def node_network(text: str) -> float | None:
    """Bytes/s of a node's network adapters together, as tables write it; None where ``text`` has none.

    "4xOPA100/node" and "4x100Gb RoCE/node" are four adapters of 100 Gbit/s, "400Gbps/node", "1600 Gbps node-node" and
    "3.2 Tbps between nodes" the sum.
    """
    adapters = re.search(r"(\d+)\s?x\s?[A-Z]*(\d+)(?:\s?Gb\S*)?(?: [A-Z]+)?/node", text, re.IGNORECASE)
    if adapters:
        return int(adapters[1]) * int(adapters[2]) / 8 * 1e9
    total = re.search(r"(\d+(?:\.\d+)?)\s?([GT])bps(?:/node| node-node| between nodes| per node)", text, re.IGNORECASE)
    return float(total[1]) * {"G": 1e9, "T": 1e12}[total[2].upper()] / 8 if total else None


def _placed(gpu: Gpu, node_gpus: int | None, network_rate: float | None) -> Gpu:
    if node_gpus is not None:
        gpu = replace(gpu, node_gpus=node_gpus)
    return gpu if network_rate is None else replace(gpu, network_rate=network_rate)


def _loose(name: str, rows: list[Hardware]) -> Hardware | None:
    """The row whose parts match those of ``name`` best: the same family first, then form factor, then memory."""
    parts = [part.upper() for part in re.split(r"[-_ ,/]+", name) if part]
    if not parts:
        return None

    def score(row: Hardware) -> tuple[int, float]:
        own = [part.upper() for part in re.split(r"[-_ ]+", row.name)]
        family = next(part for part in own if part not in ("RTX", "APPLE"))
        if family not in parts:  # wherever it stands: "DGX-2H V100-32GB"
            return (0, 0.0)
        hits = sum(any(o.startswith(p) or p.startswith(o) for o in own) for p in parts)
        form = any(p.startswith("SXM") for p in parts) or not any(p.startswith(("PCI", "NVL")) for p in parts)
        return (hits * 2 + (form and any(o.startswith("SXM") for o in own)), row.memory_bytes)

    best = max(rows, key=score, default=None)
    return best if best is not None and score(best)[0] > 0 else None


def _of_family(table: Mapping[str, int], name: str, default: int) -> int:
    """The entry of the longest family name that ``name`` begins with."""
    families = sorted(table, key=len, reverse=True)
    return next((table[family] for family in families if name.startswith(family)), default)
