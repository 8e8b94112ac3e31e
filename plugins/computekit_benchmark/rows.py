"""Putting estimates into rows of a record."""

from __future__ import annotations

from typing import Any

from computekit import records
from computekit.statistics import Estimate


def put(row: records.Row, key: str, estimate: Estimate, unit: str, samples: list[float] | None = None) -> None:
    """Add a measured quantity with its interval."""
    about: dict[str, Any] = estimate.about
    if estimate.interval is not None:
        about["interval"] = (significant(estimate.interval[0]), significant(estimate.interval[1]))
    row.quantities[key] = records.Quantity(
        value=significant(estimate.value), unit=unit, how="measured", samples=samples, **about
    )


def put_unknown(row: records.Row, key: str, unit: str, reason: str) -> None:
    """Name a quantity that could not be measured, and why."""
    row.quantities[key] = records.Quantity(value=None, unit=unit, how="measured", reason=reason)


def significant(value: float) -> float:
    """Six significant digits: more than any clock here tells."""
    return float(f"{value:.6g}")
