"""Reading the catalog's CSV files, which are shipped inside the package."""

from __future__ import annotations

import csv
from importlib import resources


def read(name: str) -> list[dict[str, str]]:
    """Rows of ``data/NAME`` by column; an empty cell is an empty string."""
    text = resources.files(__package__).joinpath("data", name).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


def number(cell: str) -> float | None:
    """The number in a cell, None if the cell is empty."""
    return float(cell) if cell else None
