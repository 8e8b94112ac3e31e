"""Types of command-line values."""

from __future__ import annotations

from typing import Any

import click


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
