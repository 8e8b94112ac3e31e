"""Types of command-line values."""

from __future__ import annotations

from typing import Any

import click


class Share(click.FloatRange):
    """A number between 0 and 1, neither included."""

    def __init__(self) -> None:
        super().__init__(0, 1, min_open=True, max_open=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        share = float(super().convert(value, param, ctx))
        if share != share:  # a range lets NaN through
            self.fail(f"{value!r} is not in the range {self._describe_range()}", param, ctx)
        return share


class SampleShape(click.ParamType[tuple[int, ...]]):
    """Sizes of one sample: ``3,224,224`` or ``3x224x224``."""

    name = "sizes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        try:
            sizes = tuple(int(part) for part in value.replace("x", ",").split(","))
        except ValueError:
            sizes = ()
        if not sizes or min(sizes) < 1:
            self.fail(f"{value!r} is not a list of sizes such as 3,224,224", param, ctx)
        return sizes
