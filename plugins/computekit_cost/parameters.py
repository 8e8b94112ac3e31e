"""Types of command-line values."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem

from computekit import options

POSITIVE = options.Number(above=0, below=1e30)  # beyond that the arithmetic overflows


class InstanceName(click.ParamType[str]):
    """An instance of the price catalog; completes in the shell."""

    name = "name"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from computekit import catalog

        names = sorted({called for price in catalog.prices() for called in (price.instance, price.name)})
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]
