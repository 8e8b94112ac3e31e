"""Time of any module on one device: a roofline over its counted operators, for models that are no transformers.

Every operator takes the longer of its arithmetic and its memory traffic, and each call at least the start of a kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from . import gemm
from .constants import CONSTANTS, Constants

if TYPE_CHECKING:
    from computekit.flops import FlopCount

    from .hardware import Gpu


@dataclass(frozen=True)
class PassTime:
    """Seconds of one forward and one backward pass, and which share of the forward pass memory bounds."""

    forward: float
    backward: float
    memory_bound: float


def passes(cost: FlopCount, gpu: Gpu, precision: str, scale: float = 1.0, constants: Constants = CONSTANTS) -> PassTime:
    """Time of the counted passes with ``scale`` times the counted batch, in ``precision``."""
    c = constants
    rate = gpu.sustained(precision, c) * c.small_products
    narrow = {"fp32": 1.0, "tf32": 1.0, "fp8": 0.5}.get(precision, 0.5)
    memory_rate = gpu.traffic_rate(c)
    start = c.kernel_s if gpu.launch_s is None else gpu.launch_s
    forward = backward = bound = 0.0
    for op in cost.by_op.values():
        moved = op.moved_bytes * narrow * scale
        each = moved / max(op.forward_kernels, 1)
        traffic = moved * float(gemm.uncached(gpu, each, c)) / memory_rate
        compute = op.forward * scale / rate
        seconds = max(traffic, compute) + op.forward_kernels * start
        forward += seconds
        bound += seconds if traffic >= compute else 0.0
        # gradients by input and by weight read and write what the forward pass did, twice
        backward += max(op.backward * scale / rate, 2 * traffic) + op.backward_kernels * start
    return PassTime(forward, backward if cost.backward is not None else 0.0, bound / forward if forward else 0.0)
