"""``computekit table``: records side by side."""

from __future__ import annotations

from pathlib import Path

import click

from .. import options


@click.command()
@options.records
@options.common
def table(records: tuple[Path, ...]) -> None:
    """Put records side by side."""
