"""Linear layers on 8-bit tensor cores: weights and inputs in 8 bits, a scale per output channel and per token.

Two kinds: integers (``torch._int_mm``: on CUDA, and on the CPU for compilers, which fuse what is around it), and
float8_e4m3fn (``torch._scaled_mm``, on CUDA from compute capability 8.9, and on the CPU, slowly). Both are for layers
whose sizes the kernels take; `fits` tells.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

if TYPE_CHECKING:
    from torch import Tensor

_LEAST_ROWS = 17  # torch._int_mm on CUDA takes no fewer
_INT8_MULTIPLE, _FLOAT8_MULTIPLE = 8, 16
_FLOAT8_CAPABILITY = (8, 9)


@torch.library.custom_op("computekit::multiply_int8", mutates_args=())
def _multiply(rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """``rows`` int8 (rows, in) times ``weight`` int8 (out, in): int32 (rows, out).

    An operator of its own, so that inductor does not know it: with its weights as constants it would make a
    ``onednn.qlinear_pointwise`` of it, whose kernel for signed inputs is thousands of times slower on CPUs without AMX.
    """
    return torch._int_mm(rows, weight.t())


@_multiply.register_fake
def _shape_of_product(rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return rows.new_empty((rows.shape[0], weight.shape[0]), dtype=torch.int32)


def fits(input: Tensor, weight: Tensor) -> bool:
    """Whether there is a kernel for ``weight`` (out, in), int8 or float8_e4m3fn, on the device of ``input``."""
    integers = weight.dtype == torch.int8
    multiple = _INT8_MULTIPLE if integers else _FLOAT8_MULTIPLE
    if weight.shape[0] % multiple or weight.shape[1] % multiple:
        return False
    if input.device.type == "cuda":
        return integers or torch.cuda.get_device_capability(input.device) >= _FLOAT8_CAPABILITY
    return input.device.type == "cpu" and not integers


def linear(input: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
    """``input`` (..., in) times ``weight`` (out, in) with ``scale`` (out, 1), plus ``bias``: (..., out).

    The result has the type of ``input``. Each row of the input is scaled by its own largest value, so that a result
    does not depend on the rest of the batch.
    """
    rows = input.reshape(-1, input.shape[-1])
    largest = rows.abs().amax(1, keepdim=True).float().clamp_min(1e-30)
    if weight.dtype == torch.int8:
        step = largest / 127
        integers = (rows / step).round().to(torch.int8)
        missing = max(0, _LEAST_ROWS - rows.shape[0]) if input.is_cuda else 0
        if missing:
            integers = F.pad(integers, (0, 0, 0, missing))
        product = _multiply(integers, weight)[: rows.shape[0]].float()
        output = (product * scale.flatten().float() * step).to(input.dtype)
    else:
        step = largest / torch.finfo(weight.dtype).max
        small = (rows / step).to(weight.dtype)
        output = torch._scaled_mm(
            small, weight.t(), scale_a=step, scale_b=scale.float().t().contiguous(), out_dtype=torch.bfloat16
        ).to(input.dtype)
    if bias is not None:
        output = output + bias.to(input.dtype)
    shaped: Tensor = output.reshape(*input.shape[:-1], weight.shape[0])
    return shaped
