"""Tables over records: which columns there are, how a number is printed, which value is best.

Pure views: nothing is computed here that a record does not hold.
"""

from __future__ import annotations

from .contracts import Column
from .records import Quantity, Record

COLUMNS: tuple[Column, ...] = (
    Column("parameters", "parameters", order=10, better="lower"),
    Column("file_bytes", "file size", "MB", 1e6, order=11, better="lower"),
    Column("train_flops", "training compute", "TFLOP", 1e12, order=60, better="lower"),
)


def summary(record: Record) -> str:
    """The record's quantities for a person, one line each (several subjects: one table)."""
    from tabulate import tabulate

    rows = [(row.label, key, _text(q)) for row in record.rows for key, q in row.quantities.items()]
    return tabulate(rows, tablefmt="plain")


def _text(quantity: Quantity) -> str:
    if quantity.value is None:
        return f"unknown ({quantity.reason})"
    return f"{quantity.value} {quantity.unit}".rstrip()
