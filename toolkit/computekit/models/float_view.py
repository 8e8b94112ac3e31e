"""A model file as if none of its weights had ever been compressed."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ..errors import FileProblem
from . import compressed
from .base import ModelFile, TensorInfo
from .compressed import QuantizedWeight

if TYPE_CHECKING:
    import torch


class FloatView(ModelFile):
    """Shows compressed weights under their own names, with their own shapes and floating-point types.

    ``weights`` are the names of those that are compressed, and how many bits each value has.
    """

    def __init__(self, source: ModelFile) -> None:
        super().__init__(source.path, source.format, source.metadata, source.parts)
        self.source = source
        self.weights = compressed.find(source.tensors)
        first = {compressed.parts(name, bits)[0]: name for name, bits in self.weights.items()}
        hidden = {part for name, bits in self.weights.items() for part in compressed.parts(name, bits)}
        self._tensors: dict[str, TensorInfo] = {}
        for name, info in source.tensors.items():
            if name in first:
                self._tensors[first[name]] = self._float_info(first[name], info)
            elif name not in hidden:
                self._tensors[name] = info

    @property
    def tensors(self) -> dict[str, TensorInfo]:
        return self._tensors

    def load(self, name: str) -> torch.Tensor:
        return self.quantized(name).dequantize() if name in self.weights else self.source.load(name)

    def quantized(self, name: str) -> QuantizedWeight:
        """One of ``weights`` as integers and scales."""
        return QuantizedWeight.restore(name, self.source.load, self.weights[name])

    def _float_info(self, name: str, info: TensorInfo) -> TensorInfo:
        shape = info.shape
        if self.weights[name] == 4:
            shape = tuple(self.source.load(f"{name}_shape").tolist())
            room = 8 * self.source.tensors[f"{name}_packed"].numel
            if not shape or min(shape) < 0 or math.prod(shape) > room:
                problem = f"weight {name!r} of shape {list(shape)} does not fit its {room} packed values"
                raise FileProblem(self.path, problem, "the file is damaged")
        dtype = self.source.tensors[f"{name}_scale"].dtype
        return TensorInfo(name, shape, dtype, math.prod(shape) * dtype.itemsize, info.storage)
