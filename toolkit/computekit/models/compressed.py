"""Compressed weights as plain tensors: integers on a grid and floating-point scales.

They are stored as the compressed-tensors convention names them, so that ``torch.load(weights_only=True)`` and
safetensors read them in a process that has never heard of computekit. A weight ``X`` of shape (out, ...) becomes

* 8 bits: ``X`` int8 (out, ...) and ``X_scale`` (out, groups);
* 4 bits: ``X_packed`` int32 (out, ceil(columns / 8)), ``X_scale`` (out, groups) and ``X_shape`` int64 (ndim,).

``columns`` is the product of all sizes but the first; each row is cut into ``groups`` groups of equal size (the last
may be shorter) that share a scale. The dtype of the scale is the dtype of the weight that was compressed, and of the
weight that comes back: ``weight = integer * scale``.

Eight values share an int32, the first in the lowest four bits, each with 8 added: the "pack-quantized" format of
compressed-tensors (github.com/vllm-project/compressed-tensors).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ..errors import ComputekitError

if TYPE_CHECKING:
    import torch

_CHUNK = 1 << 18  # elements that are worked on at a time: small enough for the cache, and a bound on temporaries


class NonFinite(ComputekitError):
    """A weight holds NaN or infinity, so it has no scale."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        return f"tensor {self.name!r} holds NaN or infinite values"


class _Described(Protocol):
    """Anything that tells shape and dtype: a tensor or a `TensorInfo`."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> torch.dtype: ...


@dataclass(frozen=True)
class QuantizedWeight:
    """One weight on an integer grid.

    ``values`` int8 in the weight's own shape (out, ...), within [-2^(bits-1), 2^(bits-1) - 1];
    ``scale`` (out, groups), in the dtype of the weight; ``bits`` is 8 or 4.
    """

    values: torch.Tensor
    scale: torch.Tensor
    bits: int = 8

    def dequantize(self) -> torch.Tensor:
        """The weight in floating point, shape of ``values``, dtype of ``scale``."""
        return dequantize(self.values, self.scale)

    def store(self, name: str) -> list[tuple[str, torch.Tensor]]:
        """The plain tensors that stand for the weight called ``name`` in a file, by name."""
        if self.bits == 8:
            return [(name, self.values), (f"{name}_scale", self.scale)]
        import torch

        shape = torch.tensor(self.values.shape, dtype=torch.int64)
        return [(f"{name}_packed", pack(self.values)), (f"{name}_scale", self.scale), (f"{name}_shape", shape)]

    @classmethod
    def restore(cls, name: str, load: Callable[[str], torch.Tensor], bits: int) -> QuantizedWeight:
        """The inverse of `store`; ``load`` returns a stored tensor by its name."""
        scale = load(f"{name}_scale")
        if bits == 8:
            return cls(load(name), scale)
        shape = tuple(load(f"{name}_shape").tolist())
        return cls(unpack(load(f"{name}_packed"), shape), scale, bits)


def find(tensors: Mapping[str, _Described]) -> dict[str, int]:
    """Names of the compressed weights among ``tensors`` and how many bits each value has.

    The layout alone decides, so files of other tools that keep the convention are recognized too.
    """
    import torch

    found: dict[str, int] = {}
    for scale_name, scale in tensors.items():
        if not scale_name.endswith("_scale") or len(scale.shape) != 2 or not scale.dtype.is_floating_point:
            continue
        name = scale_name.removesuffix("_scale")
        if name in tensors and tensors[name].dtype == torch.int8 and tensors[name].shape[:1] == scale.shape[:1]:
            found[name] = 8
            continue
        packed, shape = tensors.get(f"{name}_packed"), tensors.get(f"{name}_shape")
        if packed is None or shape is None:
            continue
        if (
            packed.dtype == torch.int32
            and shape.dtype == torch.int64
            and len(packed.shape) == 2 == len(shape.shape) + 1
        ):
            found[name] = 4
    return found


def parts(name: str, bits: int) -> list[str]:
    """The names under which the weight called ``name`` is stored."""
    return [name, f"{name}_scale"] if bits == 8 else [f"{name}_packed", f"{name}_scale", f"{name}_shape"]


def stored_bytes(shape: tuple[int, ...], dtype: torch.dtype, group: int | None = None, bits: int = 8) -> int:
    """Bytes of the plain tensors that `quantize` makes of a weight of ``shape`` and ``dtype``."""
    rows, columns = shape[0], math.prod(shape[1:])
    scales = rows * -(-columns // group_size(columns, group)) * dtype.itemsize
    return rows * columns + scales if bits == 8 else rows * -(-columns // 8) * 4 + scales + 8 * len(shape)


def group_size(columns: int, wanted: int | None) -> int:
    """The size of groups that cut ``columns`` values into as few equal groups of at most ``wanted`` as possible.

    ``None`` asks for one group: a scale per row. 576 columns in groups of 128 are 5 groups of 116 (the last has 112).
    """
    if wanted is None or wanted >= columns:
        return columns
    return -(-columns // -(-columns // wanted))


def quantize(weight: torch.Tensor, bits: int = 8, group: int | None = None, name: str = "weight") -> QuantizedWeight:
    """Round ``weight`` (out, ...) to integers of ``bits`` with one scale per row and group of ``group`` columns.

    The grid is symmetric about zero with range [-2^(bits-1), 2^(bits-1) - 1], and each scale is the smallest that keeps
    every value of its group within half a step of the grid: with N = 2^(bits-1),
    scale = max(largest / (N - 0.5), -smallest / (N + 0.5)).

    Raises:
        NonFinite: the weight holds NaN or infinity; the error calls it ``name``.
    """
    import torch

    rows = weight.reshape(weight.shape[0], -1)
    size = group_size(rows.shape[1], group)
    groups = -(-rows.shape[1] // size)
    half = 1 << (bits - 1)
    values = torch.empty(rows.shape, dtype=torch.int8)
    scale = torch.empty((rows.shape[0], groups), dtype=weight.dtype)
    exact = torch.float64 if weight.dtype == torch.float64 else torch.float32
    step = max(1, _CHUNK // rows.shape[1])
    for start in range(0, rows.shape[0], step):
        chunk = _grouped(rows[start : start + step].to(exact), size)
        low, high = chunk.amin(2), chunk.amax(2)  # both vectorized; torch.aminmax is not, and takes 15 times as long
        ideal = torch.maximum(high / (half - 0.5), low / -(half + 0.5))
        if not bool(torch.isfinite(ideal).all()):
            raise NonFinite(name)
        stored = _round_up(ideal.where(ideal > 0, 1.0), weight.dtype)
        scale[start : start + step] = stored
        integers = (chunk / stored.to(exact).unsqueeze(2)).round_().clamp_(-half, half - 1)
        values[start : start + step] = integers.flatten(1)[:, : rows.shape[1]]
    return QuantizedWeight(values.reshape(weight.shape), scale, bits)


def dequantize(values: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """``values`` int8 (out, ...) times ``scale`` (out, groups): the weight, in the dtype of ``scale``."""
    if scale.shape[1] == 1:
        # converted first: a product of mixed types takes half as long again
        return values.to(scale.dtype).mul_(scale.reshape(-1, *[1] * (values.ndim - 1)))
    rows = values.reshape(values.shape[0], -1)
    size = -(-rows.shape[1] // scale.shape[1])
    weight = _grouped(rows, size).to(scale.dtype).mul_(scale.unsqueeze(2))
    return weight.flatten(1)[:, : rows.shape[1]].reshape(values.shape)


def pack(values: torch.Tensor) -> torch.Tensor:
    """int8 (out, ...) within [-8, 7] -> int32 (out, ceil(columns / 8)); see the module's docstring for the order."""
    import torch

    rows = values.reshape(values.shape[0], -1)
    nibbles = (torch.nn.functional.pad(rows, (0, -rows.shape[1] % 8), value=-8) + 8).view(torch.uint8)
    return (nibbles[:, 0::2] | nibbles[:, 1::2] << 4).contiguous().view(torch.int32)


def unpack(packed: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """The inverse of `pack`: int8 values of ``shape``."""
    import torch

    octets = packed.contiguous().view(torch.uint8)
    nibbles = torch.stack((octets & 15, octets >> 4), dim=2).flatten(1).view(torch.int8)
    return (nibbles[:, : math.prod(shape[1:])] - 8).reshape(shape)


def _grouped(rows: torch.Tensor, size: int) -> torch.Tensor:
    """(rows, columns) -> (rows, groups, size), the last group filled up with zeros."""
    import torch

    missing = -rows.shape[1] % size
    padded = torch.nn.functional.pad(rows, (0, missing)) if missing else rows
    return padded.reshape(rows.shape[0], -1, size)


def _round_up(scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Positive ``scale`` in ``dtype``, never below its exact value: below it the largest weight is out of reach."""
    import torch

    rounded = scale.to(dtype)
    if dtype.itemsize != 2:
        return rounded
    above = (rounded.view(torch.int16) + 1).view(dtype)
    return above.where(rounded.to(scale.dtype) < scale, rounded)
