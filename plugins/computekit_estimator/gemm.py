"""Time of a matrix product on a GPU: tiles, waves, alignment, and the memory roofline.

A library splits the (m, n) output in tiles; every multiprocessor computes one tile at a time. Whole waves of tiles run
even if the last is nearly empty (wave quantisation), and a tile that hangs over the edge costs as much as a full one
(tile quantisation); see NVIDIA, "Matrix Multiplication Background User's Guide", sections 3.1 and 3.2. The library
takes the best of a few tile shapes; smaller ones reuse operands less and run at a lower rate. Where there are fewer
tiles than multiprocessors, several share one tile and split its sum over k.

All functions take numbers or numpy arrays of one shape.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .constants import CONSTANTS, Constants

if TYPE_CHECKING:
    from .hardware import Gpu

Number = Any

TILES = ((256, 128, 1.00), (128, 256, 1.00), (128, 128, 0.93), (256, 64, 0.85), (64, 256, 0.85), (128, 64, 0.78),
         (64, 128, 0.78), (64, 64, 0.62), (64, 32, 0.4), (32, 64, 0.4), (16, 64, 0.25))  # fmt: skip
"""Output tile (rows, columns) and its rate relative to the best."""

_SPLIT = 512
"""Least part of k that is worth a multiprocessor of its own."""


def seconds(
    gpu: Gpu, precision: str, m: Number, n: Number, k: Number, batch: Number = 1, element_bytes: float = 2.0,
    constants: Constants = CONSTANTS,
) -> Number:  # fmt: skip
    """Time of ``batch`` products (m, k) x (k, n)."""
    m, n, k, batch = (np.asarray(x, dtype=float) for x in (m, n, k, batch))
    aligned = (np.mod(k, 8) == 0) & (np.mod(n, 8) == 0)
    unit_rate = gpu.sustained(precision, constants) / gpu.units * np.where(aligned, 1.0, constants.misaligned)
    best: Any = np.inf
    for rows, columns, rate in TILES:
        tiles = np.maximum(np.ceil(m / rows) * np.ceil(n / columns) * batch, 1.0)
        waves = np.ceil(tiles / gpu.units)
        parts = np.clip(np.floor(gpu.units / tiles), 1.0, np.maximum(k / _SPLIT, 1.0))
        best = np.minimum(best, waves * (k / parts + constants.tile_overhead_k) * (2.0 * rows * columns / rate))
    compute = best / unit_rate
    traffic = element_bytes * batch * (m * k + k * n + m * n) / gpu.traffic_rate(constants)
    return np.maximum(compute, traffic) + constants.kernel_s


def elementwise(
    gpu: Gpu, traffic: Number, kernels: Number = 1, constants: Constants = CONSTANTS, tensor_bytes: Number = np.inf
) -> Number:
    """Time of memory-bound kernels that move ``traffic`` bytes, in tensors of ``tensor_bytes``.

    What one kernel leaves in the last-level cache the next one reads there.
    """
    return traffic * uncached(gpu, tensor_bytes, constants) / gpu.traffic_rate(constants) + kernels * constants.kernel_s


def uncached(gpu: Gpu, tensor_bytes: Number, constants: Constants = CONSTANTS) -> Number:
    """Time of moving tensors of ``tensor_bytes`` over that from memory, where the cache still holds part of them."""
    kept = np.clip(1 - np.asarray(tensor_bytes) / max(gpu.cache_bytes, 1.0), 0.0, 1.0)
    return 1 - kept * (1 - 1 / constants.cache_gain)
