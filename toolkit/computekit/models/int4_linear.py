"""A linear layer that multiplies by 4-bit weights as they lie in memory, without a copy in floats of the whole weight.

A few rows, such as the tokens that a decoder generates, go through torch's kernel for them, which dequantizes in
registers. For many rows that takes longer than a product of floats: there, pieces of the weight become floats while
they are used.

Values lie in the order of the kernel, which depends on the CPU: ``blocks`` uint8 (blocks, in, rows / 2), where octet i
of a block and a column has the value of the block's row i in its lowest four bits and that of row i + rows / 2 in the
others, each with 8 added. The last block is filled up.

The kernel multiplies bfloat16 by weights ``(value - 8) * scale + zero`` with one scale and zero, in bfloat16, per row
and window of 32 (64, 128, 256) columns. Where a window has columns of two groups there are two passes over the weight,
each with the scales of one group of each window, and with zeros as the input's columns of the other.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import torch

from .compressed import QuantizedWeight, unpack_zero_point

if TYPE_CHECKING:
    from torch import Tensor

_multiply = torch.ops.aten._weight_int4pack_mm_for_cpu.default
_WINDOWS = (256, 128, 64, 32)  # columns that may share a scale in the kernel
_PASSES = 2  # over the weight; more would take as long as making floats of it
_FEW = 32  # rows times passes up to which the kernel is faster than floats
_CHUNK = 1 << 20  # values that become floats at a time


@functools.cache
def _rows() -> int:
    """The rows of a block of the kernel on this CPU; 0 where its order is none of those that are known."""
    values = torch.randint(-8, 8, (64, 32), dtype=torch.int8, generator=torch.Generator().manual_seed(0))
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(values.int() + 8, 1).flatten()
    return next((rows for rows in (64, 32) if torch.equal(_blocks(values, rows).flatten(), packed)), 0)


def fits(weight: QuantizedWeight) -> bool:
    """Whether `linear` can multiply by ``weight`` on this CPU."""
    if weight.bits != 4 or weight.values.ndim != 2 or weight.scale.dtype == torch.float64:
        return False
    columns, groups = weight.values.shape[1], weight.scale.shape[1]
    if columns % _WINDOWS[-1] or columns % groups or not _rows():
        return False
    return len(_windows(columns, columns // groups)[1]) <= _PASSES


def to_blocks(values: Tensor) -> Tensor:
    """int8 (out, in) within [-8, 7] in the order of the kernel."""
    return _blocks(values, _rows())


def from_blocks(blocks: Tensor, outputs: int) -> Tensor:
    """The inverse of `to_blocks`, for ``outputs`` rows: int8 (out, in)."""
    values = torch.stack((blocks & 15, blocks >> 4), 1).view(torch.int8) - 8
    return values.transpose(2, 3).flatten(0, 2)[:outputs].contiguous()


def rows_from_blocks(blocks: Tensor, index: Tensor) -> Tensor:
    """Some rows only: int8 (indices, in) for ``index`` (indices,)."""
    half = blocks.shape[2]
    block, row = index // (2 * half), index % (2 * half)
    octets = blocks[block, :, row % half]
    return (octets >> (4 * (row >= half)).to(torch.uint8).unsqueeze(1) & 15).view(torch.int8) - 8


def grid(weight: QuantizedWeight) -> Tensor:
    """The scales and zeros that the kernel takes: bfloat16 (passes, windows, rows of all blocks, 2)."""
    columns, outputs = weight.values.shape[1], weight.scale.shape[0]
    _, groups, _ = _windows(columns, columns // weight.scale.shape[1])
    scale = weight.scale.float()
    zero = torch.zeros_like(scale) if weight.zero_point is None else -weight.zero_point * scale
    pairs = torch.stack((scale, zero), 2).transpose(0, 1)  # (groups, out, 2)
    filled = torch.nn.functional.pad(pairs, (0, 0, 0, -outputs % _rows()))
    return filled.bfloat16()[groups]


@torch.no_grad()
def linear(
    input: Tensor, blocks: Tensor, scale: Tensor, zero_point: Tensor | None, grid: Tensor, bias: Tensor | None
) -> Tensor:
    """``input`` (..., in) times a weight of ``scale`` (out, groups), plus ``bias``: (..., out).

    ``zero_point`` is as in files: int32 (ceil(out / 8), groups). The result has the type of ``input``, and no gradient.
    """
    outputs, columns = scale.shape[0], blocks.shape[1]
    rows = input.reshape(-1, columns)
    few = 0 < rows.shape[0] * len(grid) <= _FEW
    output = _few(rows, blocks, scale, grid) if few else _many(rows, blocks, scale, zero_point)
    output = output.to(input.dtype)
    if bias is not None:
        output += bias
    return output.view(*input.shape[:-1], outputs)


def _few(rows: Tensor, blocks: Tensor, scale: Tensor, grid: Tensor) -> Tensor:
    outputs, columns = scale.shape[0], blocks.shape[1]
    window, _, masks = _windows(columns, columns // scale.shape[1])
    rows, grid, packed = rows.bfloat16(), grid.bfloat16(), blocks.view(-1, columns // 2)
    if masks is None:
        output: Tensor = _multiply(rows.contiguous(), packed, window, grid[0])
    else:
        parts = [_multiply(rows * mask, packed, window, part) for mask, part in zip(masks, grid, strict=True)]
        output = torch.stack(parts).sum(0)
    return output if len(packed) == outputs else output[:, :outputs].contiguous()


def _many(rows: Tensor, blocks: Tensor, scale: Tensor, zero_point: Tensor | None) -> Tensor:
    if rows.dtype == torch.float32 and _fast_bfloat16():
        rows = rows.bfloat16()
    if zero_point is not None:
        zero_point = unpack_zero_point(zero_point, scale.shape)
    output = rows.new_empty((rows.shape[0], scale.shape[0]))
    step = max(1, _CHUNK // (2 * blocks.shape[1] * blocks.shape[2]))
    for start in range(0, len(blocks), step):
        part = slice(2 * blocks.shape[2] * start, 2 * blocks.shape[2] * (start + step))
        zero = None if zero_point is None else zero_point[part]
        output[:, part] = rows @ _floats(blocks[start : start + step], scale[part], zero, rows.dtype)
    return output


def _floats(blocks: Tensor, scale: Tensor, zero_point: Tensor | None, dtype: torch.dtype) -> Tensor:
    """The transposed weight, (in, out), in ``dtype``; the products of values and scales are rounded to it once."""
    count, columns, half = blocks.shape
    octets = blocks.new_empty((columns, count, 2, half))
    eight = octets.view(torch.int64)  # octets at a time
    eight[:, :, 0] = (blocks & 15).view(torch.int64).transpose(0, 1)
    eight[:, :, 1] = (blocks >> 4).view(torch.int64).transpose(0, 1)
    values = octets.view(torch.int8).view(scale.shape[1], -1, 2 * half * count)[:, :, : scale.shape[0]]
    values -= 8 if zero_point is None else (zero_point.t().contiguous() + 8).unsqueeze(1)
    return values.float().mul_(scale.t().contiguous().float().unsqueeze(1)).to(dtype).flatten(0, 1)


def _blocks(values: Tensor, rows: int) -> Tensor:
    filled = torch.nn.functional.pad(values + 8, (0, 0, 0, -values.shape[0] % rows)).view(torch.uint8)
    low, high = filled.view(-1, 2, rows // 2, values.shape[1]).transpose(2, 3).unbind(1)
    return (low | high << 4).contiguous()


@functools.cache
def _fast_bfloat16() -> bool:
    """Whether the CPU multiplies bfloat16 faster than float32."""
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


@functools.cache
def _windows(columns: int, group: int) -> tuple[int, Tensor, Tensor | None]:
    """How the kernel goes through rows of ``columns`` in groups of ``group``.

    The columns of a window; the group that each window has the scale of, (passes, windows); and the columns that count
    in each pass, ones in bfloat16 (passes, columns), None where all do.
    """
    window = next((size for size in _WINDOWS if group % size == 0), _WINDOWS[-1])
    of_column = (torch.arange(columns) // group).view(-1, window)
    first, last = of_column[:, :1], of_column[:, -1:]
    passes = torch.arange(int((last - first).max()) + 1).unsqueeze(1)
    groups = torch.minimum(first.t() + passes, last.t())
    if len(passes) == 1:
        return window, groups, None
    return window, groups, (of_column - first == passes.unsqueeze(2)).flatten(1).bfloat16()
