"""The roofline as a table and as an SVG: groups of operations under measured and datasheet ceilings."""

from __future__ import annotations

import html
import math
from dataclasses import dataclass
from typing import Any

from computekit import Hardware

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 460, 90, 30, 30, 60
_DTYPES = {"float32": "fp32", "float64": "fp64", "bfloat16": "bf16", "float16": "fp16"}
_STYLE = (
    "text{font:12px sans-serif;fill:#333}.grid{stroke:#ddd}.roof{stroke:#06c;stroke-width:2;fill:none}"
    ".sheet{stroke:#999;stroke-width:2;fill:none;stroke-dasharray:6 4}.op{fill:#c40;fill-opacity:.75}"
)


@dataclass(frozen=True)
class Roof:
    """A ceiling: ``flops`` per second and ``bytes_s``; they meet at ``ridge`` FLOPs per byte."""

    label: str
    flops: float
    bytes_s: float

    @classmethod
    def of(cls, hardware: Hardware, dtype: str, label: str) -> Roof | None:
        """The ceiling of ``hardware`` for a torch data type; None if the catalog has no peak for it."""
        peak = hardware.peak_flops.get(_DTYPES.get(dtype, dtype))
        return None if peak is None else cls(label, peak, hardware.bandwidth_bytes_s)

    @property
    def ridge(self) -> float:
        return self.flops / self.bytes_s

    def at(self, intensity: float) -> float:
        """The highest rate that ``intensity`` FLOPs per byte allow."""
        return min(self.flops, intensity * self.bytes_s)


@dataclass(frozen=True)
class Point:
    """A group of operations: what one pass of the model spends on it."""

    name: str
    calls: int
    seconds: float
    flops: int
    bytes: int
    unknown: bool

    @property
    def intensity(self) -> float:
        """FLOPs per byte."""
        return self.flops / self.bytes if self.bytes else 0.0

    @property
    def rate(self) -> float:
        """FLOPs per second."""
        return self.flops / self.seconds if self.seconds else 0.0


def points(found: dict[str, Any]) -> list[Point]:
    """The groups of `roofline.run`, the slowest first."""
    groups = [Point(name, **group) for name, group in found["groups"].items()]
    return sorted(groups, key=lambda point: -point.seconds)


def bound(point: Point, roof: Roof) -> str:
    """What limits a group of operations under ``roof``."""
    if point.unknown:
        return "unknown: no FLOP formula"
    if not point.flops:
        return "no arithmetic"
    return "memory" if point.intensity < roof.ridge else "compute"


def table(found: dict[str, Any], roof: Roof) -> str:
    """One line per group, then the variants."""
    from tabulate import tabulate

    listed = points(found)
    total = sum(point.seconds for point in listed) or 1.0
    rows = [
        [
            p.name, p.calls, 1e3 * p.seconds, 100 * p.seconds / total, p.flops / 1e6, p.bytes / 1e6, p.intensity,
            p.rate / 1e9, 100 * p.rate / roof.at(p.intensity) if p.flops else None, bound(p, roof),
        ]
        for p in listed
    ]  # fmt: skip
    headers = [
        "operation", "calls", "ms", "% of time", "MFLOP", "MB", "FLOP/B", "GFLOP/s", "% of roof", "bound by",
    ]  # fmt: skip
    flops = sum(p.flops for p in listed)
    variants = [[name, 1e3 * s, flops / s / 1e9] for name, s in found["variants"].items()]
    return "\n".join(
        [
            tabulate(rows, headers, floatfmt=".3g"),
            f"roof ({roof.label}): {roof.flops / 1e9:.3g} GFLOP/s, {roof.bytes_s / 1e9:.3g} GB/s, "
            f"ridge at {roof.ridge:.3g} FLOP/B",
            tabulate(variants, ["variant", "ms per call", "GFLOP/s"], floatfmt=".3g"),
        ]
    )


def svg(label: str, found: dict[str, Any], roofs: list[Roof]) -> str:
    """Both axes are logarithmic; the area of a circle is the group's share of the time."""
    drawn = [p for p in points(found) if p.flops and p.bytes and p.seconds]
    total = sum(p.seconds for p in drawn) or 1.0
    xs = [p.intensity for p in drawn] + [roof.ridge for roof in roofs]
    ys = [p.rate for p in drawn] + [roof.flops for roof in roofs]
    x_low, x_high = 10 ** math.floor(math.log10(min(xs) / 2)), 10 ** math.ceil(math.log10(max(xs) * 2))
    y_low, y_high = 10 ** math.floor(math.log10(min(ys) / 2)), 10 ** math.ceil(math.log10(max(ys) * 1.2))

    def at_x(value: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * math.log(value / x_low) / math.log(x_high / x_low)

    def at_y(value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * math.log(value / y_low) / math.log(y_high / y_low)

    parts = [f"<style>{_STYLE}</style>", f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>']
    for power in range(round(math.log10(x_low)), round(math.log10(x_high)) + 1):
        x = at_x(10.0**power)
        parts += [_line("grid", x, at_y(y_low), x, at_y(y_high)), _text(x, HEIGHT - BOTTOM + 18, f"1e{power}")]
    for power in range(round(math.log10(y_low)), round(math.log10(y_high)) + 1):
        y = at_y(10.0**power)
        parts += [_line("grid", LEFT, y, WIDTH - RIGHT, y), _text(LEFT - 8, y + 4, f"1e{power}", "end")]
    for kind, roof in zip(("roof", "sheet"), roofs, strict=False):
        start = max(x_low, y_low / roof.bytes_s)
        path = [(start, roof.at(start)), (roof.ridge, roof.flops), (x_high, roof.flops)]
        parts.append(f'<polyline class="{kind}" points="{" ".join(f"{at_x(a):.1f},{at_y(b):.1f}" for a, b in path)}"/>')
        parts.append(_text(WIDTH - RIGHT, at_y(roof.flops) - 6, roof.label, "end"))
    for p in drawn:
        radius = 4 + 16 * math.sqrt(p.seconds / total)
        x, y = at_x(p.intensity), at_y(p.rate)
        parts.append(f'<circle class="op" cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}"/>')
        parts.append(_text(x, y + radius + 12, p.name))
    parts += [
        _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 14, "arithmetic intensity (FLOP per byte)"),
        f'<text x="20" y="{HEIGHT / 2}" text-anchor="middle" transform="rotate(-90 20 {HEIGHT / 2})">'
        "FLOP per second</text>",
        _text(LEFT, TOP - 10, f"{label}: circles are operations, their area is the time spent", "start"),
    ]
    body = "\n".join(parts)
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}">\n{body}\n</svg>\n'


def _line(kind: str, x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _text(x: float, y: float, text: str, anchor: str = "middle") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{html.escape(text)}</text>'
