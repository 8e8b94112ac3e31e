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
        """One tensor; a compressed weight is read and dequantized a few rows at a time, which stay in the cache."""
        import torch

        if name not in self.weights:
            return self.source.load(name)
        info, layout = self._tensors[name], self.weights[name]
        whole = torch.empty(info.shape, dtype=info.dtype)
        scale, zero_point = compressed.restore_grid(name, self.source.load, layout)
        scale = scale.to(info.dtype)
        stored = self.source.tensors[layout.parts(name)[0]]
        step = max(1, compressed.CHUNK // max(1, math.prod(info.shape[1:])))
        pieces = self.source.pieces(stored.name, step * math.prod(stored.shape[1:]))
        for start in range(0, len(whole) if stored.numel else 0, step):
            rows = slice(start, start + step)
            values = next(pieces).reshape(-1, *stored.shape[1:])
            if layout.bits == 4:
                values = compressed.unpack(values, (len(values), *info.shape[1:]))
            whole[rows] = compressed.dequantize(values, scale[rows], None if zero_point is None else zero_point[rows])
        return whole

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
            rows, integers = self.source.tensors[f"{name}_packed"].shape
            if not shape or min(shape) < 0 or shape[0] != rows or math.prod(shape[1:]) > 8 * integers:
                problem = f"weight {name!r} of shape {list(shape)} does not fit its {8 * rows * integers} packed values"
                raise FileProblem(self.path, problem, "the file is damaged")
        self._check_scales(name, shape)
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

    def _check_scales(self, name: str, shape: tuple[int, ...]) -> None:
        """Raise FileProblem unless the scales of the weight ``name`` of ``shape`` cut its rows into groups."""
        rows, groups = self.source.tensors[f"{name}_scale"].shape
        columns = math.prod(shape[1:])
        size = -(-columns // max(1, groups))
        if rows != shape[0] or (columns and groups != -(-columns // size)):
            problem = f"the scales of {name!r} have shape {[rows, groups]}, which fits no weight of shape {list(shape)}"
            raise FileProblem(self.path, problem, "the file is damaged")

    def _check_zero_points(self, name: str) -> None:
        """Raise FileProblem unless each group of the weight ``name`` has a zero point."""
        out, groups = self.source.tensors[f"{name}_scale"].shape
        shape = self.source.tensors[f"{name}_zero_point"].shape
        wanted = (out if self.weights[name].bits == 8 else -(-out // 8), groups)
        if shape != wanted:
            problem = f"the zero points of {name!r} have shape {list(shape)} where {list(wanted)} belongs"
            raise FileProblem(self.path, problem, "the file is damaged")
