"""Schemes: how a weight is stored. Other plugins add theirs with the hook ``computekit_quantization_schemes``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import computekit
from computekit import ComputekitError, UnknownName

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from computekit.models.compressed import HalfWeight, QuantizedWeight

    from .moments import Moments


@dataclass(frozen=True)
class Scheme:
    """A way of choosing the integers and scales of a weight.

    ``quantize(weight, bits, group, name)`` takes a weight (out, ...) in floating point and returns it with ``bits``, 8
    or 4, per value and a scale for every `compressed.group_size` values of a row; ``name`` is for error messages.
    ``group`` is ``default_group`` (None: one scale per row) unless the user gives another. ``zero_points`` says that
    each group has one as well, and ``values`` "float" that the 8 bits are float8_e4m3fn instead of integers.
    With 16 ``bits`` it is a type to compute in: every tensor of floats is stored in it, and there are no scales.
    ``by_rows`` says that ``quantize`` rounds each row as if it were alone, so that a weight may come in pieces.

    ``calibrated(weight, moments, bits, group, name)`` does the same for a weight whose layer was observed on data.
    ``channel_scales(weights, moments, rounded)`` returns scales (columns,) for the inputs of layers with these weights
    (out, columns): the weights are multiplied by them before they are rounded, and what comes before the layers is
    divided by them, where that is possible. ``rounded`` is how a weight comes back from the file.
    """

    name: str
    summary: str
    bits: int
    quantize: Callable[[torch.Tensor, int, int | None, str], QuantizedWeight | HalfWeight]
    default_group: int | None = None
    calibrated: Callable[[torch.Tensor, Moments, int, int | None, str], QuantizedWeight] | None = None
    channel_scales: Callable[[Sequence[Tensor], Moments, Callable[[Tensor], Tensor]], Tensor] | None = None
    zero_points: bool = False
    values: Literal["int", "float"] = "int"
    by_rows: bool = False

    @property
    def fault(self) -> str:
        """What is wrong with it, for which the host refuses it; empty if nothing is."""
        if not re.fullmatch(r"[\w.+-]+", self.name):
            return "its name is no single word of letters, digits, dots and dashes, as --scheme takes"
        if self.bits not in (4, 8) and self.name not in ("bf16", "fp16"):
            return f"it has {self.bits!r} bits, and the file's format has 4 and 8"
        if self.values not in ("int", "float"):
            return f"its values are {self.values!r}, neither 'int' nor 'float'"
        group = self.default_group
        if group is not None and not (isinstance(group, int) and group > 0):
            return f"its default_group is {group!r}, neither None nor a number of values"
        for field in ("quantize", "calibrated", "channel_scales"):
            if getattr(self, field) is not None and not callable(getattr(self, field)):
                return f"its {field} is a {type(getattr(self, field)).__name__}, not a function"
        return ""

    @property
    def needs_data(self) -> bool:
        """Whether layers have to be observed on data."""
        return self.calibrated is not None or self.channel_scales is not None


@computekit.hookspec
def computekit_quantization_schemes() -> Iterable[Scheme]:  # type: ignore[empty-body]
    """Add ways to quantize weights, usable as ``computekit quantize --scheme NAME``.

    Example::

        from computekit.models.compressed import QuantizedWeight
        from computekit_quantize import Scheme
        from computekit_quantize.schemes import computekit_quantization_schemes

        def sign(weight, bits, group, name):
            scale = weight.flatten(1).abs().mean(1, keepdim=True)
            return QuantizedWeight(weight.sign().char(), scale, bits)

        @implements(computekit_quantization_schemes)
        def schemes() -> list[Scheme]:
            return [Scheme("sign", "signs and a scale per row, in 4 bits", 4, sign)]
    """


def known() -> dict[str, Scheme]:
    """Every registered scheme by name; the first plugin to give a name keeps it, and one that is used is recorded."""
    from computekit import host

    return host.current().named("computekit_quantization_schemes", Scheme, "quantization scheme")


def get(name: str) -> Scheme:
    """The scheme called ``name``; raises UnknownName with the nearest ones."""
    schemes = known()
    if name not in schemes:
        raise UnknownName("quantization scheme", name, schemes)
    return schemes[name]


def _round_to_nearest(weight: torch.Tensor, bits: int, group: int | None, name: str) -> QuantizedWeight:
    from computekit.models import compressed

    return compressed.quantize(weight, bits, group, name)


def _least_squared_error(weight: torch.Tensor, bits: int, group: int | None, name: str) -> QuantizedWeight:
    from . import mse

    return mse.quantize(weight, bits, group, name)


def _round_with_zero_points(weight: torch.Tensor, bits: int, group: int | None, name: str) -> QuantizedWeight:
    from computekit.models import compressed

    return compressed.quantize(weight, bits, group, name, zero_points=True)


def _round_to_float8(weight: torch.Tensor, bits: int, group: int | None, name: str) -> QuantizedWeight:
    from computekit.models import compressed

    return compressed.quantize_float8(weight, group, name)


def _bfloat16(weight: torch.Tensor, bits: int, group: int | None, name: str) -> HalfWeight:
    import torch

    from computekit.models.compressed import HalfWeight

    return HalfWeight(weight.to(torch.bfloat16))


def _float16(weight: torch.Tensor, bits: int, group: int | None, name: str) -> HalfWeight:
    import torch

    from computekit.models.compressed import HalfWeight

    values = weight.to(torch.float16)
    if bool((values.isinf() & weight.isfinite()).any()):
        raise ComputekitError(f"tensor {name!r} holds values beyond 65504, the largest of fp16; bf16 holds them")
    return HalfWeight(values)


def _half_quadratic(weight: torch.Tensor, bits: int, group: int | None, name: str) -> QuantizedWeight:
    from . import hqq

    return hqq.quantize(weight, bits, group, name)


def _gptq(weight: torch.Tensor, moments: Moments, bits: int, group: int | None, name: str) -> QuantizedWeight:
    from . import gptq

    return gptq.quantize(weight, moments, bits, group, name)


def _gptq_asym(weight: torch.Tensor, moments: Moments, bits: int, group: int | None, name: str) -> QuantizedWeight:
    from . import gptq

    return gptq.quantize(weight, moments, bits, group, name, zero_points=True)


def _awq(weights: Sequence[Tensor], moments: Moments, rounded: Callable[[Tensor], Tensor]) -> Tensor:
    from . import awq

    return awq.scales(weights, moments, rounded)


def _smoothquant(weights: Sequence[Tensor], moments: Moments, rounded: Callable[[Tensor], Tensor]) -> Tensor:
    from . import smoothquant

    return smoothquant.scales(weights, moments, rounded)


INT8 = Scheme("int8", "8-bit integers, one scale per output channel", 8, _round_to_nearest,
              by_rows=True)  # fmt: skip
INT4 = Scheme("int4", "4-bit integers, a scale per 32 values", 4, _round_to_nearest, 32, by_rows=True)
INT4_MSE = Scheme("int4-mse", "4 bits; each group's scale has the least squared error", 4, _least_squared_error, 32,
                  by_rows=True)  # fmt: skip
INT4_ASYM = Scheme("int4-asym", "4 bits; a scale and a zero point per 32 values", 4, _round_with_zero_points, 32,
                   zero_points=True, by_rows=True)  # fmt: skip
FP8 = Scheme("fp8", "8-bit floating point (e4m3), one scale per output channel", 8, _round_to_float8, values="float",
             by_rows=True)  # fmt: skip
BF16 = Scheme("bf16", "two bytes, bfloat16, which the model computes in", 16, _bfloat16, values="float", by_rows=True)
FP16 = Scheme("fp16", "two bytes, float16, which the model computes in", 16, _float16, values="float", by_rows=True)
HQQ = Scheme("hqq", "4 bits; half-quadratic scales and zero points per 32 values", 4, _half_quadratic, 32,
             zero_points=True, by_rows=True)  # fmt: skip
GPTQ = Scheme("gptq", "4 bits; later columns make up for rounding errors; needs data", 4, _least_squared_error, 32,
              _gptq)  # fmt: skip
GPTQ_ASYM = Scheme("gptq-asym", "gptq with zero points; needs data", 4, _round_with_zero_points, 32, _gptq_asym,
                   zero_points=True)  # fmt: skip
GPTQ_INT8 = Scheme("gptq-int8", "gptq in 8 bits, one scale per output channel; needs data", 8,
                   _round_to_nearest, calibrated=_gptq)  # fmt: skip
AWQ = Scheme("awq", "4 bits; channels with large inputs are scaled up first; needs data", 4, _least_squared_error, 32,
             channel_scales=_awq)  # fmt: skip
AWQ_GPTQ = Scheme("awq-gptq", "4 bits; awq, then gptq; needs data", 4, _least_squared_error, 32, _gptq, _awq)
SMOOTHQUANT = Scheme("smoothquant", "8 bits; outliers of the inputs are moved into the weights; needs data", 8,
                     _round_to_nearest, channel_scales=_smoothquant)  # fmt: skip

BUILT_IN = [
    INT8,
    INT4,
    INT4_MSE,
    INT4_ASYM,
    HQQ,
    GPTQ,
    GPTQ_ASYM,
    GPTQ_INT8,
    AWQ,
    AWQ_GPTQ,
    SMOOTHQUANT,
    FP8,
    BF16,
    FP16,
]
