"""Convolutions and linear layers in 8-bit integers, with fixed grids for what goes in and comes out.

Inputs are unsigned bytes on an affine grid (`Affine`) that was chosen beforehand, on calibration data; weights are
int8 with a scale per output channel. One kernel does the product, adds the bias (a BatchNorm folded into scale and
bias), adds a residual, applies the activation function and rounds to the grid of the result, so that a chain of layers
needs no floats in between. The products are exact; the grids are the only error. The kernels are oneDNN's, which
``torch.ops.onednn`` offers on x86 CPUs: a few times faster than float32 where the CPU has 8-bit dot products (VNNI).

Importing this imports torch.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

HIGHEST = 255
_LONG = 8  # taps of a one-dimensional kernel
_ZERO_POINT_OFFSET = 128  # files count from -128, as compressed-tensors does; the kernels from 0


@dataclass(frozen=True)
class Affine:
    """A grid of 256 steps: a value is ``scale * (integer - zero_point)`` with integers from 0 to 255.

    Zero is on the grid, so that padding is exact.
    """

    scale: float
    zero_point: int

    @classmethod
    def over(cls, low: float, high: float) -> Affine:
        """The grid from ``low`` to ``high``, stretched to hold zero."""
        low, high = min(low, 0.0), max(high, 0.0)
        scale = torch.tensor((high - low) / HIGHEST).item()  # as float32, which files hold
        if scale < 1e-30:  # nothing but zeros: any grid will do
            return cls(1.0, 0)
        return cls(scale, min(HIGHEST, max(0, round(-low / scale))))

    def store(self, name: str) -> list[tuple[str, Tensor]]:
        """The tensors ``name_scale`` float32 (1,) and ``name_zero_point`` int8 (1,) of a file."""
        zero_point = torch.tensor([self.zero_point - _ZERO_POINT_OFFSET], dtype=torch.int8)
        return [(f"{name}_scale", torch.tensor([self.scale])), (f"{name}_zero_point", zero_point)]

    @classmethod
    def restore(cls, scale: Tensor, zero_point: Tensor | None) -> Affine:
        """The inverse of `store`; without a zero point the grid is symmetric."""
        offset = 0 if zero_point is None else int(zero_point.item())
        return cls(float(scale.item()), offset + _ZERO_POINT_OFFSET)

    @functools.cached_property
    def _offset(self) -> Tensor:
        return torch.tensor(self.zero_point + 0.5)

    def quantize(self, x: Tensor) -> Tensor:
        """Floats (...) to uint8 (...), to the nearest step (halves up), images to channels last."""
        integers = torch.add(self._offset, x.float(), alpha=1 / self.scale).clamp_(0, HIGHEST)
        # both casts are vectorized, and the first truncates; one straight to bytes takes five times as long
        integers = integers.to(torch.int16).to(torch.uint8)
        return integers.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else integers

    def dequantize(self, integers: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """uint8 (...) to floats (...)."""
        return self.shift(integers.float()).to(dtype)

    def shift(self, integers: Tensor) -> Tensor:
        """Floats that count steps (an average of integers, for example) to what they stand for, in place."""
        return (integers.sub_(self.zero_point) if self.zero_point else integers).mul_(self.scale)


@functools.cache
def available() -> str:
    """Why this CPU cannot run the kernels as they should; empty if it can.

    Without 8-bit dot products the products saturate at 16 bits, which changes results.
    """
    if not hasattr(torch.ops.onednn, "qconv_pointwise") or not torch._C._has_mkldnn:
        return "this build of torch has no oneDNN kernels for 8-bit integers"
    if not torch.cpu._is_vnni_supported():
        return "this CPU has no 8-bit dot products (AVX-512 VNNI)"
    return ""


@dataclass(frozen=True)
class Activation:
    """A function that the kernels apply to their result: oneDNN's name, arguments and algorithm."""

    name: str = "none"
    arguments: tuple[float, ...] = ()
    algorithm: str = ""


LINEAR_ONLY = ("gelu",)
"""Activation functions that the kernel of linear layers has and that of convolutions has not."""


def supports(layer: nn.Module) -> bool:
    """Whether the kernels can take the place of ``layer``.

    These are nn.Linear and convolutions in 1 to 3 dimensions padded with zeros, of PyTorch's own classes, whose weight
    is a parameter (and not computed from others).
    """
    kind = getattr(type(layer), "_uncompressed", type(layer))
    if "weight" not in layer._parameters:
        return False
    if kind.forward is nn.Linear.forward:
        return True
    convolution = kind.forward in (nn.Conv1d.forward, nn.Conv2d.forward, nn.Conv3d.forward)
    return convolution and getattr(layer, "padding_mode", "") == "zeros"


class IntegerLayer(nn.Module):
    """One kernel: a layer with the BatchNorm, the sum and the activation function that follow it.

    ``weight`` int8 and ``scale`` (out, 1) are those of ``layer``, which `supports` accepted. ``result`` is the grid of
    the output, None for floats of ``dtype``. ``addend`` is the grid of the second input, a tensor that is added and may
    be overwritten; it needs a ``result``.
    """

    def __init__(
        self,
        layer: nn.Module,
        weight: Tensor,
        scale: Tensor,
        input: Affine,
        result: Affine | None,
        *,
        norm: Any = None,
        addend: Affine | None = None,
        activation: Activation = Activation(),
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self.input, self.result, self.addend, self.activation = input, result, addend, activation
        self.out_dtype = torch.uint8 if result else dtype if dtype == torch.bfloat16 else torch.float32
        self.dtype = dtype
        by_channel, bias = scale.detach().flatten().double(), getattr(layer, "bias", None)
        shift = None if bias is None else bias.detach().double()
        if norm is not None:
            gain, offset = _affine_of(norm)
            by_channel = by_channel * gain
            shift = offset if shift is None else shift * gain + offset
        self.by_channel = by_channel.float()
        self.bias = None if shift is None else shift.float()
        self.zero_points = torch.zeros(weight.shape[0], dtype=torch.int32)
        self.dimensions = weight.dim() - 2
        self.weight: Tensor = weight.detach()
        if self.dimensions:
            self._set_geometry(layer)
        self._packed: tuple[Any, ...] = ()  # what the kernel takes besides its inputs, when the first shows its shape

    def _set_geometry(self, layer: Any) -> None:
        """Strides and the like; one-dimensional convolutions run as two-dimensional ones of height 1."""
        lift = self.dimensions == 1
        self.stride, self.dilation = ([1] * lift + list(each) for each in (layer.stride, layer.dilation))
        self.groups: int = layer.groups
        self.padding = [0] * (len(self.stride))
        self.ahead: list[int] | None = None  # padding that differs between the ends of an axis, as F.pad takes it
        if not isinstance(layer.padding, str):
            self.padding = [0] * lift + list(layer.padding)
        elif any(layer._reversed_padding_repeated_twice):
            self.ahead = list(layer._reversed_padding_repeated_twice)
        if lift:
            self.weight = self.weight.unsqueeze(2)
        self.as_product = self.addend is None and self.dimensions < 3 and self.groups == 1 and self._is_product()

    def _is_product(self) -> bool:
        """Whether a matrix product is faster than the kernel for convolutions, as it was measured to be.

        For one channel in long lines, 2 to 16 times, although all windows are copied; for windows of one place, where
        the kernel would correct for the zero point in each call.
        """
        window = self.weight.shape[2:]
        if max(window) == 1 and not any(self.padding):
            return self.input.zero_point != 0
        return self.weight.shape[1] == 1 and min(window) == 1 and max(window) >= _LONG

    def forward(self, x: Tensor, addend: Tensor | None = None) -> Tensor:
        """uint8 ``x`` and ``addend`` in the layer's own shapes -> uint8, or floats without ``result``."""
        if self.dimensions:
            y = self._convolve(x, addend)
        else:
            y = self._multiply(x.reshape(-1, x.shape[-1])).reshape(*x.shape[:-1], -1)
        return y if y.dtype in (torch.uint8, self.dtype) else y.to(self.dtype)

    def _result(self) -> tuple[Any, ...]:
        """How the kernels describe what they give: scale, zero point and type."""
        grid = self.result or Affine(1.0, 0)
        return grid.scale, grid.zero_point, self.out_dtype

    def _post(self) -> tuple[Any, ...]:
        return self.activation.name, self.activation.arguments, self.activation.algorithm

    def _multiply(self, rows: Tensor) -> Tensor:
        """(rows, in) -> (rows, out)"""
        if not self._packed:
            weight = torch.ops.onednn.qlinear_prepack(self.weight.flatten(1), list(rows.shape))
            self._packed = (*self._operands(weight), self.bias, *self._result(), *self._post())
        y: Tensor = torch.ops.onednn.qlinear_pointwise.default(rows, *self._packed)
        return y

    def _operands(self, weight: Tensor) -> tuple[Any, ...]:
        """What follows the first input of each kernel."""
        return self.input.scale, self.input.zero_point, weight, self.by_channel, self.zero_points

    def _convolve(self, x: Tensor, addend: Tensor | None) -> Tensor:
        if self.ahead is not None:
            x = F.pad(x, self.ahead, value=self.input.zero_point)
        single = x.dim() == self.dimensions + 1  # one sample without a batch
        x = self._lift(x, single)
        if self.as_product:
            y = self._slide(x)
        else:
            y = self._run(x, addend if addend is None else self._lift(addend, single))
        if self.dimensions == 1:
            y = y.squeeze(2)
        return y.squeeze(0) if single else y

    def _slide(self, x: Tensor) -> Tensor:
        """The lifted ``x`` (N, in, ...) -> (N, out, places, places), as a product with its windows."""
        places = self._places(x)
        if max(self.weight.shape[2:]) == 1:
            windows = x[:, :, :: self.stride[0], :: self.stride[1]].permute(0, 2, 3, 1)
        else:
            ahead = [pad for size in reversed(self.padding) for pad in (size, size)]
            x = F.pad(x, ahead, value=self.input.zero_point) if any(ahead) else x
            rows, columns = x.stride()[2:]
            windows = x.as_strided(
                (x.shape[0], *places, *self.weight.shape[2:]),
                (x.stride(0), rows * self.stride[0], columns * self.stride[1], rows * self.dilation[0],
                 columns * self.dilation[1]),
            )  # fmt: skip
        y = self._multiply(windows.reshape(-1, self.weight[0].numel()))
        return y.view(x.shape[0], *places, -1).permute(0, 3, 1, 2)

    def _run(self, x: Tensor, addend: Tensor | None) -> Tensor:
        """The kernel on lifted inputs."""
        where = self.stride, self.padding, self.dilation, self.groups
        if not self._packed:
            weight = torch.ops.onednn.qconv_prepack(
                self.weight, self.by_channel, self.input.scale, self.input.zero_point, *where, list(x.shape)
            )
            sum = (self.addend.scale, self.addend.zero_point, "sum", 1.0) if self.addend else ()
            self._packed = self._operands(weight), (self.bias, *where, *self._result(), *sum, *self._post())
        operands, rest = self._packed
        if addend is None:
            y: Tensor = torch.ops.onednn.qconv_pointwise.default(x, *operands, *rest)
        elif list(addend.shape) == [x.shape[0], self.weight.shape[0], *self._places(x)]:
            y = torch.ops.onednn.qconv2d_pointwise.binary(x, *operands, addend, *rest)
        else:  # one of them is repeated, which the kernel does not do
            assert self.addend is not None
            assert self.result is not None
            floats = 1.0, 0, torch.float32, "none", (), ""
            y = torch.ops.onednn.qconv_pointwise.default(x, *operands, self.bias, *where, *floats)
            y = y + self.addend.dequantize(addend)
            y = self.result.quantize(y.relu_() if self.activation.name == "relu" else y)
        return y

    def _places(self, x: Tensor) -> list[int]:
        """The spatial shape of the result for the lifted ``x``."""
        sizes = zip(x.shape[2:], self.weight.shape[2:], self.stride, self.padding, self.dilation, strict=True)
        return [(size + 2 * pad - dil * (window - 1) - 1) // step + 1 for size, window, step, pad, dil in sizes]

    def _lift(self, x: Tensor, single: bool) -> Tensor:
        """With the axes that the kernel wants, channels last in memory."""
        if single:
            x = x.unsqueeze(0)
        if self.dimensions == 1:
            x = x.unsqueeze(2)
        return x.contiguous(memory_format=torch.channels_last_3d if self.dimensions == 3 else torch.channels_last)


def _affine_of(norm: Any) -> tuple[Tensor, Tensor]:
    """What a BatchNorm does in eval mode, as float64 (channels,): y = x * gain + offset."""
    gain = (norm.running_var.detach().double() + norm.eps).rsqrt()
    if norm.weight is not None:
        gain = gain * norm.weight.detach().double()
    offset = -norm.running_mean.detach().double() * gain
    return gain, offset if norm.bias is None else offset + norm.bias.detach().double()
