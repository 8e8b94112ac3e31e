"""Divisors of layers, heads, devices and batches."""

from __future__ import annotations

import math


def divisors(number: int, limit: int | None = None) -> list[int]:
    """Divisors in rising order, those above ``limit`` left out."""
    low = [d for d in range(1, math.isqrt(number) + 1) if number % d == 0]
    return [d for d in sorted({*low, *(number // d for d in low)}) if limit is None or d <= limit]


def near(total: int, wanted: int) -> int:
    """The divisor of ``total`` nearest to ``wanted``."""
    return min(divisors(total), key=lambda d: abs(d - wanted))
