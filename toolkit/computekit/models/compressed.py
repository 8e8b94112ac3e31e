"""Compressed weights as plain tensors: integers on a grid and floating-point scales.

They are stored as the compressed-tensors convention names them, so that ``torch.load(weights_only=True)`` and
safetensors read them in a process that has never heard of computekit. A weight ``X`` of shape (out, ...) becomes

* 8 bits: ``X`` int8 or float8_e4m3fn (out, ...) and ``X_scale`` (out, groups);
* 4 bits: ``X_packed`` int32 (out, ceil(columns / 8)), ``X_scale`` (out, groups) and ``X_shape`` int64 (ndim,);
* with zero points also ``X_zero_point``: int8 (out, groups), for 4 bits packed to int32 (ceil(out / 8), groups).

A layer with 8-bit weights that rounds its activations to fixed grids has ``input_scale``, ``input_zero_point`` and,
where layers are fused, ``output_scale`` and ``output_zero_point`` beside its weight, of one value each.

``columns`` is the product of all sizes but the first; each row is cut into ``groups`` groups of equal size (the last
may be shorter) that share a scale and a zero point: ``weight = (value - zero point) * scale``. The dtype of the scale
is the dtype of the weight that was compressed, and of the weight that comes back. Scales of float32 may be stored in
bfloat16; then ``scales_of`` in the metadata ``compression`` of the file says what they were, as one word or by weight.

Eight values share an int32, the first in the lowest four bits, each with 8 added: the "pack-quantized" format of
compressed-tensors (github.com/vllm-project/compressed-tensors). 8 bits are its "int-quantized" or "float-quantized".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

from ..errors import ComputekitError

if TYPE_CHECKING:
    import torch

CHUNK = 1 << 19  # elements that are worked on at a time: small enough for the cache, and a bound on temporaries


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


class Layout(NamedTuple):
    """Which tensors stand for a weight in a file: ``bits`` of each value, 8 or 4, and whether there are zero points."""

    bits: int = 8
    zero_points: bool = False

    def parts(self, name: str) -> list[str]:
        """The names under which the weight called ``name`` is stored, its values first."""
        values = [name, f"{name}_scale"] if self.bits == 8 else [f"{name}_packed", f"{name}_scale", f"{name}_shape"]
        return [*values, f"{name}_zero_point"] if self.zero_points else values


@dataclass(frozen=True)
class QuantizedWeight:
    """One weight on a grid.

    ``values`` in the weight's own shape (out, ...): int8 within [-2^(bits-1), 2^(bits-1) - 1], or float8_e4m3fn;
    ``scale`` (out, groups), in the dtype of the weight; ``bits`` is 8 or 4. ``zero_point`` int8 (out, groups) is the
    value that stands for zero, within the range of the values; None where that is 0 everywhere.
    """

    values: torch.Tensor
    scale: torch.Tensor
    bits: int = 8
    zero_point: torch.Tensor | None = None

    @property
    def layout(self) -> Layout:
        return Layout(self.bits, self.zero_point is not None)

    def dequantize(self) -> torch.Tensor:
        """The weight in floating point, shape of ``values``, dtype of ``scale``."""
        return dequantize(self.values, self.scale, self.zero_point)

    def with_half_scales(self) -> QuantizedWeight:
        """The same with scales that bfloat16 holds, in the dtype that they have.

        With the integers as they are, each value changes by at most 2^-9 of itself: in 4 bits, a 64th of a step.
        """
        import torch

        return replace(self, scale=self.scale.to(torch.bfloat16).to(self.scale.dtype))

    def store(self, name: str, *, half_scales: bool = False) -> list[tuple[str, torch.Tensor]]:
        """The plain tensors that stand for the weight called ``name`` in a file, by name.

        ``half_scales``: those of `with_half_scales`, in two bytes each.
        """
        import torch

        scale = self.scale.to(torch.bfloat16) if half_scales else self.scale
        tensors = [self.values if self.bits == 8 else pack(self.values), scale]
        if self.bits == 4:
            tensors.append(torch.tensor(self.values.shape, dtype=torch.int64))
        if self.zero_point is not None:
            tensors.append(self.zero_point if self.bits == 8 else pack(self.zero_point.T).T.contiguous())
        return list(zip(self.layout.parts(name), tensors, strict=True))

    @classmethod
    def restore(cls, name: str, load: Callable[[str], torch.Tensor], layout: Layout) -> QuantizedWeight:
        """The inverse of `store`; ``load`` returns a stored tensor by its name."""
        values, _, *others = layout.parts(name)
        whole = load(values) if layout.bits == 8 else unpack(load(values), tuple(load(others[0]).tolist()))
        scale, zero_point = restore_grid(name, load, layout)
        return cls(whole, scale, layout.bits, zero_point)


@dataclass(frozen=True)
class HalfWeight:
    """A tensor in two bytes a value: ``values`` in bfloat16 or float16."""

    values: torch.Tensor

    def dequantize(self) -> torch.Tensor:
        """The values, in the type that they have."""
        return self.values

    def store(self, name: str) -> list[tuple[str, torch.Tensor]]:
        """The one plain tensor that stands for the weight called ``name`` in a file."""
        return [(name, self.values)]


def find(tensors: Mapping[str, _Described]) -> dict[str, Layout]:
    """Names of the compressed weights among ``tensors`` and how each is laid out.

    The layout alone decides, so files of other tools that keep the convention are recognized too.
    """
    import torch

    found: dict[str, Layout] = {}
    for scale_name, scale in tensors.items():
        if not scale_name.endswith("_scale") or len(scale.shape) != 2 or not scale.dtype.is_floating_point:
            continue
        name = scale_name.removesuffix("_scale")
        values, packed, size = tensors.get(name), tensors.get(f"{name}_packed"), tensors.get(f"{name}_shape")
        zero_points = f"{name}_zero_point" in tensors
        if values is not None and values.dtype in (torch.int8, torch.float8_e4m3fn):
            if values.shape[:1] == scale.shape[:1]:
                found[name] = Layout(8, zero_points)
        elif packed is not None and size is not None:
            kinds = (packed.dtype, len(packed.shape), size.dtype, len(size.shape))
            if kinds == (torch.int32, 2, torch.int64, 1):
                found[name] = Layout(4, zero_points)
    return found


def restore_grid(
    name: str, load: Callable[[str], torch.Tensor], layout: Layout
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Scale and zero point (both (out, groups)) of the weight called ``name``; ``load`` as for `restore`."""
    _, scale_name, *others = layout.parts(name)
    scale = load(scale_name)
    if not layout.zero_points:
        return scale, None
    zero_point = load(others[-1])
    return scale, zero_point if layout.bits == 8 else unpack_zero_point(zero_point, scale.shape)


def grid_parts(name: str) -> list[str]:
    """The names that the grids of activations have beside the weight called ``name``: see `int8_program.Grids`."""
    layer = name.rpartition(".")[0]
    prefix = f"{layer}." if layer else ""
    return [f"{prefix}{side}_{part}" for side in ("input", "output") for part in ("scale", "zero_point")]


def stored_bytes(
    shape: tuple[int, ...], scale_bytes: int, group: int | None = None, bits: int = 8, zero_points: bool = False
) -> int:
    """Bytes of the plain tensors that stand for a weight of ``shape`` with scales of ``scale_bytes`` each."""
    rows, columns = shape[0], math.prod(shape[1:])
    groups = -(-columns // group_size(columns, group))
    values = rows * columns if bits == 8 else rows * -(-columns // 8) * 4 + 8 * len(shape)
    zeros = 0 if not zero_points else rows * groups if bits == 8 else -(-rows // 8) * 4 * groups
    return values + zeros + rows * groups * scale_bytes


def group_size(columns: int, wanted: int | None) -> int:
    """The size of groups that cut ``columns`` values into as few equal groups of at most ``wanted`` as possible.

    ``None`` asks for one group: a scale per row. 576 columns in groups of 128 are 5 groups of 116 (the last has 112).
    """
    if wanted is None or wanted >= columns:
        return columns
    return -(-columns // -(-columns // wanted))


def quantize(
    weight: torch.Tensor, bits: int = 8, group: int | None = None, name: str = "weight", *, zero_points: bool = False
) -> QuantizedWeight:
    """Round ``weight`` (out, ...) to integers of ``bits`` with one scale per row and group of ``group`` columns.

    The grid has range [-2^(bits-1), 2^(bits-1) - 1]. Without zero points it is symmetric about zero, and each scale
    keeps every value of its group within half a step: see `_step`. With ``zero_points`` the grid reaches from the
    smallest to the largest value of the group, zero included: scale = (largest - smallest) / (2N - 1).

    Raises:
        NonFinite: the weight holds NaN or infinity; the error calls it ``name``.
    """
    import torch

    rows = weight.reshape(weight.shape[0], -1)
    size = group_size(rows.shape[1], group)
    shape = (rows.shape[0], -(-rows.shape[1] // size))
    half = 1 << (bits - 1)
    edge = 0.5 if ((half - 1) / (half - 0.5)) ** 2 * (1 + 3 / size) < 1 else 0.0
    values = torch.empty(rows.shape, dtype=torch.int8)
    scale = torch.empty(shape, dtype=weight.dtype)
    zero = torch.zeros(shape, dtype=torch.int8) if zero_points else None
    exact = torch.float64 if weight.dtype == torch.float64 else torch.float32
    step = max(1, CHUNK // rows.shape[1])
    for start in range(0, rows.shape[0], step):
        part = slice(start, start + step)
        chunk = _grouped(rows[part].to(exact), size)
        low, high = chunk.amin(2), chunk.amax(2)  # both vectorized; torch.aminmax is not, and takes 15 times as long
        ideal = _step(low, high, half, edge, zero_points)
        least, most = ideal.aminmax()
        if not math.isfinite(most.item()):  # NaN counts as the largest
            raise NonFinite(name)
        spare = not edge and not zero_points
        scale[part] = _storable(ideal, weight.dtype, half, spare)
        if least.item() < torch.finfo(exact).tiny:  # a subnormal quotient has few digits, or none
            precise = _step(low.double(), high.double(), half, edge, zero_points)
            precise = _storable(precise.where(precise > 0, 1.0), weight.dtype, half, spare)
            scale[part] = precise.where(ideal < torch.finfo(exact).tiny, scale[part])
        fine = scale[part].to(exact)
        chunk = chunk / fine.unsqueeze(2)
        if zero is not None:
            zero[part] = (-half - low.clamp_max(0) / fine).round_().clamp_(-half, half - 1)
            chunk += zero[part].unsqueeze(2)
        values[part] = chunk.round_().clamp_(-half, half - 1).flatten(1)[:, : rows.shape[1]]
    return QuantizedWeight(values.reshape(weight.shape), scale, bits, zero)


def in_pieces(
    pieces: Iterable[torch.Tensor],
    shape: tuple[int, ...],
    quantize: Callable[[torch.Tensor], QuantizedWeight | HalfWeight],
) -> QuantizedWeight | HalfWeight:
    """What ``quantize`` makes of a weight of ``shape`` (out, ...) that comes as ``pieces``, 1-D tensors of whole rows.

    The weight itself is never in memory, what becomes of it is. ``quantize`` must round every row by itself.
    """
    whole: dict[str, torch.Tensor] = {}
    start = 0
    for piece in pieces:
        part = quantize(piece.reshape(-1, *shape[1:]))
        tensors = {key: value for key, value in vars(part).items() if key != "bits" and value is not None}
        for key, tensor in tensors.items():
            if not start:
                whole[key] = tensor.new_empty(shape[0], *tensor.shape[1:])
            whole[key][start : start + len(tensor)] = tensor
        start += len(part.values)
    return replace(part, **cast(Any, whole))


def _step(low: torch.Tensor, high: torch.Tensor, half: int, edge: float, zero_points: bool) -> torch.Tensor:
    """The scale of groups that reach from ``low`` to ``high`` on a grid of 2 * ``half`` integers.

    With ``edge`` 0 the value that decides falls on the outermost integer, with 0.5 half a step beyond it: a smaller
    scale, but that one value has the largest error, step / 2. Where the errors of the others are uniform, their squares
    sum to less if ((N - 1) / (N - 0.5))^2 (1 + 3 / n) < 1 for n values and N = ``half``: from 20 values on in 4 bits,
    from 381 on in 8 bits.
    """
    import torch

    if zero_points:
        return (high.clamp_min(0) - low.clamp_max(0)) / (2 * half - 1)
    return torch.maximum(high / (half - 1 + edge), low / -(half + edge))


def _storable(ideal: torch.Tensor, dtype: torch.dtype, half: int, spare: bool) -> torch.Tensor:
    """The scales ``ideal`` in the type of the file: not below them, where the largest weight would be out of reach.

    With ``spare`` there is half a step of room on the grid: the nearest scale will do, unless it has few digits.
    """
    import torch

    if not spare:
        return _round_up(ideal, dtype)
    return torch.maximum(ideal.to(dtype), _round_up(ideal * (half / (half + 0.5)), dtype))


def quantize_float8(weight: torch.Tensor, group: int | None = None, name: str = "weight") -> QuantizedWeight:
    """Round ``weight`` (out, ...) to float8_e4m3fn with one scale per row and group, the largest value being 448.

    Every value keeps three bits after its leading one, down to 2^-15 of the largest (Micikevicius et al. 2022,
    arXiv:2209.05433, section 3).

    Raises:
        NonFinite: the weight holds NaN or infinity; the error calls it ``name``.
    """
    import torch

    rows = weight.reshape(weight.shape[0], -1)
    size = group_size(rows.shape[1], group)
    exact = torch.float64 if weight.dtype == torch.float64 else torch.float32
    chunk = _grouped(rows.to(exact), size)
    largest = chunk.abs().amax(2)
    if not bool(torch.isfinite(largest).all()):
        raise NonFinite(name)
    full = torch.finfo(torch.float8_e4m3fn).max
    scale = _round_up((largest.double() / full).where(largest > 0, 1.0), weight.dtype)
    values = (chunk / scale.to(exact).unsqueeze(2)).clamp_(-full, full).to(torch.float8_e4m3fn)
    return QuantizedWeight(values.flatten(1)[:, : rows.shape[1]].reshape(weight.shape), scale)


def dequantize(values: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor | None = None) -> torch.Tensor:
    """``values`` (out, ...) less ``zero_point``, times ``scale`` (both (out, groups)): in the dtype of ``scale``."""
    weight = values.to(scale.dtype)  # converted first: a product of mixed types takes half as long again
    if scale.shape[1] == 1 and zero_point is None:  # without views, which small layers would notice
        return weight.mul_(scale.reshape(-1, *[1] * (values.ndim - 1)))
    rows = weight.reshape(values.shape[0], -1)
    groups = _grouped(rows, -(-rows.shape[1] // scale.shape[1]))
    if zero_point is not None:
        groups = groups - zero_point.to(scale.dtype).unsqueeze(2)
    return groups.mul_(scale.unsqueeze(2)).flatten(1)[:, : rows.shape[1]].reshape(values.shape)


def pack(values: torch.Tensor) -> torch.Tensor:
    """int8 (out, ...) within [-8, 7] -> int32 (out, ceil(columns / 8)); see the module's docstring for the order."""
    import torch

    rows = values.reshape(values.shape[0], -1)
    nibbles = (torch.nn.functional.pad(rows, (0, -rows.shape[1] % 8), value=-8) + 8).view(torch.uint8)
    return (nibbles[:, 0::2] | nibbles[:, 1::2] << 4).contiguous().view(torch.int32)


def unpack(packed: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """The inverse of `pack`: int8 values of ``shape``."""
    import torch

    # flat first: a matrix of one column counts as contiguous with any stride, and cannot be viewed as octets
    octets = packed.reshape(-1).view(torch.uint8).reshape(packed.shape[0], 4 * packed.shape[1])
    nibbles = torch.stack((octets & 15, octets >> 4), dim=2).flatten(1).view(torch.int8)
    return (nibbles[:, : math.prod(shape[1:])] - 8).reshape(shape)


def unpack_zero_point(packed: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """Zero points int8 (out, groups) of 4-bit values, which are packed along the rows to (ceil(out / 8), groups)."""
    return unpack(packed.T, (shape[1], shape[0])).T


def _grouped(rows: torch.Tensor, size: int) -> torch.Tensor:
    """(rows, columns) -> (rows, groups, size), the last group filled up with zeros."""
    import torch

    missing = -rows.shape[1] % size
    padded = torch.nn.functional.pad(rows, (0, missing)) if missing else rows
    return padded.reshape(rows.shape[0], -1, size)


def _round_up(scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Positive ``scale`` in ``dtype``, never below its exact value."""
    import torch

    rounded = scale.to(dtype)
    integers = {2: torch.int16, 4: torch.int32}.get(dtype.itemsize)
    if integers is None or dtype == scale.dtype:
        return rounded
    above = (rounded.view(integers) + 1).view(dtype)
    return above.where(rounded.to(scale.dtype) < scale, rounded)
