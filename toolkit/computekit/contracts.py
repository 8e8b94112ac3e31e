"""What hooks return, commands and steps (`verbs`) aside: small frozen dataclasses that the host checks in one place.

Nothing here imports torch; factories and loaders are callables that import what they need when they are called.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from .errors import CatalogRowRefused

if TYPE_CHECKING:
    from torch import nn

    from .datasets import Data
    from .models.base import ModelFile, Writer


@dataclass(frozen=True)
class Architecture:
    """A named model factory: ``build(**arch_args)`` returns an ``nn.Module`` with fresh parameters.

    ``example(batch, **arch_args)`` returns the positional arguments of one forward call for ``batch`` samples, so that
    tools can run or trace the model without data. ``defaults(data)`` returns the arguments that fit a data set (number
    of classes, channels, vocabulary).
    """

    name: str
    summary: str
    build: Callable[..., nn.Module]
    example: Callable[..., tuple[Any, ...]] | None = None
    defaults: Callable[[Data], Mapping[str, Any]] = field(default=lambda _data: {})


@dataclass(frozen=True)
class Dataset:
    """A named data set; ``load()`` returns its splits."""

    name: str
    summary: str
    load: Callable[[], Data]


@dataclass(frozen=True)
class ModelFormat:
    """A kind of model file. ``sniff`` looks at content, never at the name; formats are asked in order of ``priority``.

    ``sniff(path)`` is cheap and never raises, and gets folders too; ``read(path, trust_pickle)`` returns a lazily
    reading `ModelFile` whose ``format`` is this ``name``; ``write(like, path)`` returns a `Writer` that makes a file
    with everything but the weights taken from ``like``, or a bare one if ``like`` is None or of another kind.
    ``suffixes`` are the endings by which ``computekit convert`` is asked for this kind.
    """

    name: str
    summary: str
    sniff: Callable[[Path], bool]
    read: Callable[[Path, bool], ModelFile]
    write: Callable[[ModelFile | None, Path], Writer] | None = None
    priority: int = 100
    suffixes: Sequence[str] = ()


@dataclass(frozen=True)
class Runtime:
    """How model files are run whose metadata says ``"runtime": {"name": NAME, ...}``.

    ``load(source, build)`` returns a module in eval mode that computes what the model does: ``source`` is the open
    file, whose metadata it may read; ``build()`` gives the architecture's own module with the file's weights in it, for
    those that need it. It raises FileProblem for a file, and MissingExtra for a package, that it needs and lacks.
    """

    name: str
    summary: str
    load: Callable[[ModelFile, Callable[[], nn.Module]], nn.Module]


PEAK_DTYPES = (
    "fp64", "fp64_matrix", "fp32", "tf32", "bf16", "fp16", "fp16_acc16", "fp8", "int8", "fp4", "int4",
)  # fmt: skip
"""Keys of `Hardware.peak_flops`. ``fp64_matrix`` is the matrix unit where the vector unit has another rate;
``fp16_acc16`` accumulates in fp16 where that is faster than the fp32 accumulation of ``fp16``."""


@dataclass(frozen=True)
class Hardware:
    """One row of the hardware catalog: one device as PyTorch sees it.

    Peaks are dense (no sparsity factor), in FLOP/s (OP/s for integers), keyed by `PEAK_DTYPES`; a multiply-add is 2.
    ``memory_bytes`` is the vendor's nominal gigabytes times 1e9. ``interconnect_bytes_s`` is the total of both
    directions. ``launch_s`` is the time of a call that does nothing, known of measured devices. ``unverified`` names
    the figures that could not be checked against a source. A figure that is not known is left out or None.
    """

    name: str
    kind: str
    peak_flops: Mapping[str, float]
    memory_bytes: float
    bandwidth_bytes_s: float
    source: str
    tdp_w: float | None = None
    aliases: Sequence[str] = ()
    vendor: str = ""
    notes: str = ""
    year: int | None = None
    interconnect: str = ""
    interconnect_bytes_s: float | None = None
    unverified: Sequence[str] = ()
    launch_s: float | None = None

    def __post_init__(self) -> None:
        unknown = [dtype for dtype in self.peak_flops if dtype not in PEAK_DTYPES]
        if unknown:
            raise CatalogRowRefused(self.name, f"unknown peak {unknown[0]!r}; known: {', '.join(PEAK_DTYPES)}")
        figures = [*self.peak_flops.values(), self.memory_bytes, self.bandwidth_bytes_s, self.tdp_w]
        if any(figure is not None and not figure > 0 for figure in figures):
            raise CatalogRowRefused(self.name, "a figure is not positive; leave out what is not known")
        if not self.source:
            raise CatalogRowRefused(self.name, "it names no source")


@dataclass(frozen=True)
class Price:
    """One row of the price catalog: what one instance costs per hour, where and when that was seen.

    ``accelerator`` is a name of the hardware catalog, None for an instance without one. ``reserved_*`` is the hourly
    price under a commitment of one or three years.
    """

    provider: str
    instance: str
    region: str
    on_demand_usd_per_hour: float | None
    spot_usd_per_hour: float | None
    snapshot_date: str
    source: str
    accelerator: str | None = None
    accelerator_count: int = 0
    vcpus: int | None = None
    memory_gib: float | None = None
    notes: str = ""
    reserved_1y_usd_per_hour: float | None = None
    reserved_3y_usd_per_hour: float | None = None

    @property
    def name(self) -> str:
        """``provider/instance/region``, without the region where the price holds everywhere."""
        return "/".join(part for part in (self.provider, self.instance, self.region) if part)

    def __post_init__(self) -> None:
        figures = [self.on_demand_usd_per_hour, self.spot_usd_per_hour,
                   self.reserved_1y_usd_per_hour, self.reserved_3y_usd_per_hour]  # fmt: skip
        if all(figure is None for figure in figures):
            raise CatalogRowRefused(self.name, "it has no price")
        if any(figure is not None and not figure > 0 for figure in figures):
            raise CatalogRowRefused(self.name, "a price is not positive; leave out what is not known")
        if not self.source:
            raise CatalogRowRefused(self.name, "it names no source")
        try:
            datetime.date.fromisoformat(self.snapshot_date)
        except ValueError:
            raise CatalogRowRefused(self.name, f"snapshot_date {self.snapshot_date!r} is not YYYY-MM-DD") from None


@dataclass(frozen=True)
class Column:
    """How a table shows one quantity. ``better`` marks the best value; ``pareto`` columns decide Pareto optimality.

    ``scale`` divides the raw value before printing: latency_s with scale 1e-3 and unit "ms". ``digits`` are significant
    digits. ``interval`` prints the confidence interval beside the value. A ``detail`` column is shown only when
    ``--columns`` asks for it. Columns stand in the order of ``order``.
    """

    key: str
    title: str
    unit: str = ""
    scale: float = 1.0
    digits: int = 3
    better: Literal["lower", "higher"] | None = None
    pareto: bool = False
    interval: bool = False
    detail: bool = False
    order: int = 100
