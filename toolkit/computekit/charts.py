"""Small charts as inline SVG: no library, no script, the same bytes for the same numbers."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 640, 360
_LEFT, _RIGHT, _TOP, _BOTTOM = 80, 24, 16, 52


@dataclass(frozen=True)
class Point:
    """A labelled point with an optional interval in y."""

    label: str
    x: float
    y: float
    y_low: float | None = None
    y_high: float | None = None
    strong: bool = False


@dataclass(frozen=True)
class Axis:
    """A linear or logarithmic scale from data to pixels."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    @classmethod
    def over(cls, values: Sequence[float], start: float, end: float) -> Axis:
        """An axis with a margin around ``values``; logarithmic if they span more than a factor of 30."""
        low, high = min(values), max(values)
        if low > 0 and high / low > 30:
            return cls(low / 1.5, high * 1.5, start, end, log=True)
        margin = (high - low) * 0.12 or abs(high) * 0.1 or 1.0
        return cls(low - margin, high + margin, start, end)

    def at(self, value: float) -> float:
        """Pixel position of ``value``."""
        if self.log:
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self) -> list[float]:
        """Round values within the axis: 1, 2 or 5 times a power of ten apart, or whole decades."""
        if self.log:
            decades = range(math.ceil(math.log10(self.low)), math.floor(math.log10(self.high)) + 1)
            return [10.0**k for k in decades]
        rough = (self.high - self.low) / 5
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough)
        first = math.ceil(self.low / step)
        return [k * step for k in range(first, math.floor(self.high / step) + 1)]


def scatter(points: Sequence[Point], x_title: str, y_title: str) -> str:
    """A scatter plot; strong points (the Pareto-optimal) are filled, intervals are drawn as error bars."""
    ends = [v for p in points for v in (p.y, p.y_low, p.y_high) if v is not None]
    x = Axis.over([p.x for p in points], _LEFT, WIDTH - _RIGHT)
    y = Axis.over(ends, HEIGHT - _BOTTOM, _TOP)
    parts = [*_frame(x, y, x_title, y_title)]
    for point in points:
        px, py = x.at(point.x), y.at(point.y)
        if point.y_low is not None and point.y_high is not None:
            parts.append(_line(px, y.at(point.y_low), px, y.at(point.y_high), "bar"))
        parts.append(f'<circle class="{"strong" if point.strong else "weak"}" cx="{px:.1f}" cy="{py:.1f}" r="5"/>')
        anchor, shift = ("end", -9) if px > WIDTH * 0.7 else ("start", 9)
        parts.append(_text(px + shift, py - 6, point.label, anchor))
    return _svg(parts, f"{y_title} against {x_title}")


def lines(series: Mapping[str, Sequence[tuple[float, float]]], x_title: str, y_title: str) -> str:
    """A line chart; each series is named at its last point."""
    everything = [point for points in series.values() for point in points]
    x = Axis.over([p[0] for p in everything], _LEFT, WIDTH - _RIGHT - 80)
    y = Axis.over([p[1] for p in everything], HEIGHT - _BOTTOM, _TOP)
    parts = [*_frame(x, y, x_title, y_title)]
    for index, (name, points) in enumerate(series.items()):
        path = " ".join(f"{x.at(a):.1f},{y.at(b):.1f}" for a, b in points)
        parts.append(f'<polyline class="s{index % 4}" points="{path}"/>')
        parts.append(_text(x.at(points[-1][0]) + 6, y.at(points[-1][1]) + 4, name, "start"))
    return _svg(parts, f"{y_title} against {x_title}")


def waterfall(parts: Mapping[str, float], title: str) -> str:
    """Parts of a sum as bars, each beginning where the one before ends; the last bar is the total."""
    total = sum(parts.values())
    x = Axis.over([0.0, total], _LEFT + 60, WIDTH - _RIGHT)
    height = (HEIGHT - _BOTTOM - _TOP) / (len(parts) + 1)
    drawn = [_line(x.at(tick), _TOP, x.at(tick), HEIGHT - _BOTTOM, "grid") for tick in x.ticks()]
    drawn += [_text(x.at(tick), HEIGHT - _BOTTOM + 18, f"{tick:.4g}") for tick in x.ticks()]
    start = 0.0
    for index, (name, value) in enumerate([*parts.items(), ("total", total)]):
        left = 0.0 if index == len(parts) else start
        y = _TOP + index * height
        drawn.append(
            f'<rect class="strong" x="{x.at(left):.1f}" y="{y + 0.15 * height:.1f}" '
            f'width="{x.at(left + value) - x.at(left):.1f}" height="{0.7 * height:.1f}"/>'
        )
        drawn.append(_text(_LEFT + 52, y + height / 2 + 4, name, "end"))
        start += value
    drawn.append(_text((x.start + x.end) / 2, HEIGHT - 12, title))
    return _svg(drawn, title)


def _frame(x: Axis, y: Axis, x_title: str, y_title: str) -> list[str]:
    parts = [_line(x.start, y.start, WIDTH - _RIGHT, y.start, "axis"), _line(x.start, y.start, x.start, y.end, "axis")]
    for tick in x.ticks():
        parts += [_line(x.at(tick), y.start, x.at(tick), y.end, "grid"), _text(x.at(tick), y.start + 18, f"{tick:.4g}")]
    for tick in y.ticks():
        parts += [
            _line(x.start, y.at(tick), WIDTH - _RIGHT, y.at(tick), "grid"),
            _text(x.start - 8, y.at(tick) + 4, f"{tick:.4g}", "end"),
        ]
    middle = (y.start + y.end) / 2
    parts.append(_text((x.start + x.end) / 2, HEIGHT - 12, x_title))
    parts.append(
        f'<text x="18" y="{middle:.1f}" text-anchor="middle" transform="rotate(-90 18 {middle:.1f})">'
        f"{html.escape(y_title)}</text>"
    )
    return parts


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _text(x: float, y: float, text: str, anchor: str = "middle") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{html.escape(text)}</text>'


def _svg(parts: Sequence[str], label: str) -> str:
    body = "\n".join(parts)
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{html.escape(label)}">\n{body}\n</svg>'
