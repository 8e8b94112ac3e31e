"""A model file as if none of its weights had ever been compressed."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from ..errors import FileProblem
from . import compressed
from .base import ModelFile, TensorInfo
from .compressed import QuantizedWeight

if TYPE_CHECKING:
    import torch


class FloatView(ModelFile):
    """Shows compressed weights under their own names, with their own shapes and floating-point types.

    ``weights`` are the names of those that are compressed, and how each is laid out; ``first`` are the same
    names by the first of the tensors that stand for each.
    """

    def __init__(self, source: ModelFile) -> None:
        super().__init__(source.path, source.format, source.metadata, source.parts)
        self.source = source
        self.weights = compressed.find(source.tensors)
        self.first = {layout.parts(name)[0]: name for name, layout in self.weights.items()}
        hidden = {part for name, layout in self.weights.items() for part in layout.parts(name)}
        hidden |= {part for name in self.weights for part in self._grid_parts(name)}
        self._tensors: dict[str, TensorInfo] = {}
        for name, info in source.tensors.items():
            if name in self.first:
                self._tensors[self.first[name]] = self._float_info(self.first[name], info)
            elif name not in hidden:
                self._tensors[name] = info

    @property
    def tensors(self) -> dict[str, TensorInfo]:
        return self._tensors

    def load(self, name: str) -> torch.Tensor:
        return self.quantized(name).dequantize() if name in self.weights else self.source.load(name)

    def quantized(self, name: str) -> QuantizedWeight:
        """One of ``weights`` as integers and scales."""
        found = QuantizedWeight.restore(name, self.source.load, self.weights[name])
        return replace(found, scale=found.scale.to(self._dtype(name)))

    def grids(self, name: str) -> dict[str, torch.Tensor]:
        """The grids of the activations of the layer whose weight is ``name``, by the names of its buffers.

        Raises:
            FileProblem: a scale or a zero point is none.
        """
        found = {part: self.source.load(part) for part in self._grid_parts(name)}
        for part, tensor in found.items():
            value = tensor.item()
            fits = 0 < value < math.inf if part.endswith("_scale") else value in range(-128, 128)
            if not fits:
                raise FileProblem(self.path, f"{part!r} is {value}, which makes no grid", "the file is damaged")
        return {part.rpartition(".")[2]: tensor for part, tensor in found.items()}

    def _grid_parts(self, name: str) -> list[str]:
        tensors = self.source.tensors
        return [part for part in compressed.grid_parts(name) if part in tensors and tensors[part].numel == 1]

    def _float_info(self, name: str, info: TensorInfo) -> TensorInfo:
        shape = info.shape
        if self.weights[name].bits == 4:
            shape = tuple(self.source.load(f"{name}_shape").tolist())
            room = 8 * self.source.tensors[f"{name}_packed"].numel
            if not shape or min(shape) < 0 or math.prod(shape) > room:
                problem = f"weight {name!r} of shape {list(shape)} does not fit its {room} packed values"
                raise FileProblem(self.path, problem, "the file is damaged")
        if self.weights[name].zero_points:
            self._check_zero_points(name)
        dtype = self._dtype(name)
        return TensorInfo(name, shape, dtype, math.prod(shape) * dtype.itemsize, info.storage)

    def _dtype(self, name: str) -> torch.dtype:
        """The type of the weight ``name``: that of its scales, unless those were narrowed: see `compressed`."""
        import torch

        compression = self.source.metadata.get("compression")
        before = compression.get("scales_of") if isinstance(compression, dict) else None
        if isinstance(before, dict):
            before = before.get(name)
        if before is None:
            return self.source.tensors[f"{name}_scale"].dtype
        if before not in ("float32", "float64"):
            raise FileProblem(self.path, f"wants scales of {before!r} for {name!r}", "the file is damaged")
        return torch.float32 if before == "float32" else torch.float64

    def _check_zero_points(self, name: str) -> None:
        """Raise FileProblem unless each group of the weight ``name`` has a zero point."""
        out, groups = self.source.tensors[f"{name}_scale"].shape
        shape = self.source.tensors[f"{name}_zero_point"].shape
        wanted = (out if self.weights[name].bits == 8 else -(-out // 8), groups)
        if shape != wanted:
            problem = f"the zero points of {name!r} have shape {list(shape)} where {list(wanted)} belongs"
            raise FileProblem(self.path, problem, "the file is damaged")
