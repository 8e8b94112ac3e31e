"""A linear layer whose product is computed in 8-bit integers, with a scale per token (row) of its input.

Each row of the input is rounded to [-127, 127] by its own largest value, so the result for one token does not depend on
what else is in the batch. A row that a few outliers dominate would keep few of those levels for the rest; what rounding
leaves of it is rounded once more, 128 times finer, and multiplied too: two products instead of one, with 15 bits.

The integer product itself is exact. On CPUs with 8-bit dot products (AVX-512 VNNI) it is several times faster than in
float32. For the single tokens that a decoder generates, reading the weight takes longer than multiplying: there
`weight_only` reads it once and rounds the input to bfloat16 alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

_LEVELS = 127
_FINER = 128
OUTLIERS = 4.0
"""A row whose integers have a smaller mean magnitude is rounded twice; normally distributed ones have 25 to 35."""

_CACHE = 3 << 17  # values of one block's input or output that stay in the second-level cache (1.5 MB in float32)
_FEW = 8  # rows up to which `weight_only` is faster
_WIDE = 3072  # columns of a block, as long as there are rows enough to fill the cache with


def linear(input: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
    """``input`` (..., in) times ``weight`` int8 (out, in) with ``scale`` (out, 1), plus ``bias``: (..., out).

    The result has the type of ``input``. It is computed in blocks that stay in the cache from the rounding of the
    input to the scaling of the result: in one piece, those passes take longer than the product.
    """
    rows = input.reshape(-1, input.shape[-1])
    output = torch.empty((rows.shape[0], weight.shape[0]), dtype=input.dtype)
    columns = weight.t()
    if weight.shape[1] == 1:  # torch._int_mm takes the strides (1, 1) of a transposed column for those of a row
        columns = torch.empty(columns.shape, dtype=torch.int8).copy_(columns)
    by_column = scale.flatten().float()
    shift = None if bias is None else bias.float()
    tall = max(1, min(rows.shape[0], _CACHE // max(weight.shape[1], min(weight.shape[0], _WIDE))))
    wide = max(1, _CACHE // tall)
    for top in range(0, rows.shape[0], tall):
        block = _Rounded(rows[top : top + tall].float())
        for left in range(0, weight.shape[0], wide):
            part = slice(left, left + wide)
            product = block.times(columns[:, part], by_column[part])
            block.finish(product, None if shift is None else shift[part], output[top : top + tall, part])
    return output.reshape(*input.shape[:-1], weight.shape[0])


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
    """Rows (rows, in) as integers times ``step`` (rows, 1).

    Of the rows ``again``, ``finer`` has what rounding left over, in integers times ``step`` / 128. Compiled code rounds
    all rows once.
    """

    def __init__(self, rows: Tensor) -> None:
        largest = torch.maximum(rows.amax(1, keepdim=True), -rows.amin(1, keepdim=True))
        self.step = largest.clamp_min_(1e-30).div_(_LEVELS)
        scaled = rows * self.step.reciprocal()
        rounded = scaled.round()
        self.integers = rounded.to(torch.int8)
        self.again: Tensor | None = None
        if torch.compiler.is_compiling():  # how many rows there are depends on the data
            return
        # sums of integers below 2^24 are exact in float32, so neighbours cannot change a row's choice
        again = (torch.linalg.vector_norm(rounded, 1, 1) < OUTLIERS * rows.shape[1]).nonzero().flatten()
        if len(again):
            self.again = again
            self.finer = scaled[again].sub_(rounded[again]).mul_(_FINER).round_().to(torch.int8)

    def times(self, columns: Tensor, by_column: Tensor) -> Tensor:
        """The rows times ``columns`` int8 (in, out) and ``by_column`` (out,), without `step`: float32 (rows, out)."""
        product = torch._int_mm(self.integers, columns).float()
        if self.again is not None:
            product[self.again] += torch._int_mm(self.finer, columns).float().mul_(1 / _FINER)
        return product.mul_(by_column)

    def finish(self, product: Tensor, shift: Tensor | None, target: Tensor) -> None:
        """Write what `times` gave, times `step` and plus ``shift`` (out,), to ``target`` (rows, out)."""
        if shift is None:
            torch.mul(product, self.step, out=target)
        elif target.dtype == torch.float32:
            torch.addcmul(shift, product, self.step, out=target)
        else:
            target.copy_(torch.addcmul(shift, product, self.step))
