"""Types of command-line values."""

from __future__ import annotations

import math
from typing import Any

import click
from click.shell_completion import CompletionItem


class Number(click.ParamType[float]):
    """A finite number within bounds; NaN is none."""

    name = "number"

    def __init__(
        self,
        above: float = -math.inf,
        at_least: float = -math.inf,
        below: float = math.inf,
        at_most: float = math.inf,
    ) -> None:
        self.above, self.at_least, self.below, self.at_most = above, at_least, below, at_most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            number = float(value)
        except ValueError:
            self.fail(f"{value!r} is not a number", param, ctx)
        if not (number > self.above and number >= self.at_least and number < self.below and number <= self.at_most):
            self.fail(f"{value!r} is not a finite number {self._range()}", param, ctx)
        return number

    def _range(self) -> str:
        bounds = [("above", self.above), ("of at least", self.at_least), ("below", self.below),
                  ("of at most", self.at_most)]  # fmt: skip
        return " and ".join(f"{word} {bound:g}" for word, bound in bounds if math.isfinite(bound))


POSITIVE = Number(above=0, below=1e30)  # beyond that the arithmetic overflows


class InstanceName(click.ParamType[str]):
    """An instance of the price catalog; completes in the shell."""

    name = "name"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from computekit import catalog

        names = sorted({called for price in catalog.prices() for called in (price.instance, price.name)})
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]
