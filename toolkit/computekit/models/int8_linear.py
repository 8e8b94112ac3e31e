"""A linear layer whose product is computed in 8-bit integers, with a grid per token (row) of its input.

Each row of the input is rounded to 256 steps from its own least value to its own largest, so the result for one token
does not depend on what else is in the batch. A row that a few outliers dominate would keep few of those steps for the
rest; what rounding leaves of it is rounded once more, 128 times finer, and multiplied too: two products instead of one,
with 15 bits.

The integer product itself is exact. On CPUs with 8-bit dot products (AVX-512 VNNI) it is several times faster than in
float32; then the passes over input and output around it take as long as the product. There are few of them, in blocks
that stay in the cache. `weight_only` is for layers that compute in floats and for the single tokens that a decoder
generates: it reads the integers once and rounds the input to bfloat16.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

_STEPS, _MIDDLE = 255, 128
_FINER = 128
OUTLIERS = 6.0
"""A row whose mean magnitude is less than this many steps is rounded twice; normally distributed ones have 25 to 35."""

_EPSILON = 1e-8  # the kernel that rounds adds this to the range of a row
_ROUND = getattr(torch.ops.quantized, "embedding_bag_byte_prepack_with_rowwise_min_max", None)
_CACHE = 3 << 17  # values of one block's input or output that stay in the cache (1.5 MB in float32)
_FEW = 8  # rows up to which `weight_only` is faster
_WIDE = 3072  # columns of a block, as long as there are rows enough to fill the cache with


@torch.no_grad()
def linear(input: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
    """``input`` (..., in) times ``weight`` int8 (out, in) with ``scale`` (out, 1), plus ``bias``: (..., out).

    The result has the type of ``input``, and no gradient; that of a row with NaN or infinity is NaN.
    """
    size, outputs = weight.shape[1], weight.shape[0]
    rows = input.reshape(-1, size)
    output = torch.empty((rows.shape[0], outputs), dtype=input.dtype)
    columns = weight.t()
    if size == 1:  # torch._int_mm takes the strides (1, 1) of a transposed column for those of a row
        columns = torch.empty(columns.shape, dtype=torch.int8).copy_(columns)
    by_column = scale.flatten().float()
    shift = None if bias is None else bias.float()
    tall = max(1, min(rows.shape[0], _CACHE // max(size, min(outputs, _WIDE))))
    wide = max(1, _CACHE // tall)
    for top in range(0, rows.shape[0], tall):
        block = _Rounded(rows[top : top + tall].float())
        for left in range(0, outputs, wide):
            part, target = slice(left, left + wide), output[top : top + tall, left : left + wide]
            product = block.times(columns[:, part])
            result = target if target.dtype == torch.float32 else product
            if shift is None:
                torch.mul(product, by_column[part], out=result)
            else:
                torch.addcmul(shift[part], product, by_column[part], out=result)
            if result is not target:
                target.copy_(result)
    return output.reshape(*input.shape[:-1], outputs)


@torch.no_grad()
def rounded(input: Tensor) -> Tensor:
    """``input`` (..., in) as `linear` sees it: what its rows are after rounding."""
    block = _Rounded(input.reshape(-1, input.shape[-1]).float())
    values = block.integers[:-1].float().mul_(block.step).add_(block.middle)
    if block.again is not None:
        values.index_add_(0, block.again, block.finer.float().mul_(block.step[block.again]), alpha=1 / _FINER)
    return values.to(input.dtype).reshape(input.shape)


def generates(input: Tensor) -> bool:
    """Whether `weight_only` can take ``input`` (..., positions, in): one position each of a few sequences.

    That is what goes through a decoder while it generates. The kernel reads beyond the end of rows of other lengths.
    """
    columns = input.shape[-1]
    return input.dim() > 2 and input.shape[-2] == 1 and columns % 32 == 0 and 0 < input.numel() <= _FEW * columns


def weight_only(input: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
    """As `linear`, in bfloat16 times ``weight``, which is read once; fast for a few rows."""
    rows = input.reshape(-1, input.shape[-1]).bfloat16()
    product = torch.ops.aten._weight_int8pack_mm(rows, weight, scale.flatten().bfloat16())
    output: Tensor = product.to(input.dtype).reshape(*input.shape[:-1], weight.shape[0])
    return output if bias is None else output.add_(bias)


class _Rounded:
    """Rows float32 (rows, in) as integers times ``step`` (rows, 1) plus ``middle`` (rows, 1).

    A row of ones follows the integers. Of the rows ``again``, ``finer`` has what rounding left over, in integers times
    ``step`` / 128.
    """

    def __init__(self, rows: Tensor) -> None:
        low, high = rows.amin(1, keepdim=True), rows.amax(1, keepdim=True)
        self.integers = torch.empty((rows.shape[0] + 1, rows.shape[1]), dtype=torch.int8)
        integers, ones = self.integers[:-1], self.integers[-1:].fill_(1)
        _round(rows, low, high, integers)
        self.step = high.sub_(low).add_(_EPSILON).div_(_STEPS)
        self.middle = low.add_(self.step, alpha=_MIDDLE)
        # how far the values are from zero. What is further than 127 wraps around, as only outliers do; sums of integers
        # are exact, so that neighbours cannot change what becomes of a row
        zero = torch.div(self.middle, self.step).round_().clamp_(-128, 127).to(torch.int8)
        distances = torch._int_mm(integers.add(zero).abs_(), ones.t())
        again = (distances < OUTLIERS * rows.shape[1]).flatten().nonzero().flatten()
        self.again = again if len(again) else None
        if self.again is not None:
            left = rows[again].sub_(self.middle[again]).div_(self.step[again]).sub_(integers[again])
            self.finer = left.mul_(_FINER).round_().to(torch.int8)

    def times(self, columns: Tensor) -> Tensor:
        """The rows times ``columns`` int8 (in, out): float32 (rows, out)."""
        exact = torch._int_mm(self.integers, columns)
        floats = exact.view(torch.float32).copy_(exact)  # in place: every value takes four bytes before and after
        product = floats[:-1]
        if self.again is not None:
            product.index_add_(0, self.again, torch._int_mm(self.finer, columns).float(), alpha=1 / _FINER)
        return product.mul_(self.step).addcmul_(self.middle, floats[-1:])


def _round(rows: Tensor, low: Tensor, high: Tensor, target: Tensor) -> None:
    """Write rows float32 (rows, in), between ``low`` and ``high`` (rows, 1), to ``target`` int8, from -128 to 127."""
    if _ROUND is None:
        by = _STEPS / (high - low).add_(_EPSILON)
        target.copy_(rows.sub(low).mul_(by).round_().sub_(_MIDDLE))
    else:
        bytes = _ROUND(rows, torch.cat((low, high), 1))[:, :-8]  # behind a row, its grid
        torch.bitwise_xor(bytes, _MIDDLE, out=target.view(torch.uint8))
