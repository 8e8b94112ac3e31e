"""Writing ONNX models: the graph of another one, with weights in fewer bits; `onnx_graph` says how these lie in it.

All weights go into the one file, those that the source keeps in others too.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch

from ..errors import FileProblem
from . import onnx_files, onnx_graph, raw
from .base import Writer
from .onnx_files import OnnxFile
from .onnx_graph import Place

_CODES = {dtype: code for code, dtype in onnx_files.DTYPES.items()}
_HALF = (torch.float16, torch.bfloat16)
_CAST_BFLOAT16 = 13  # the operator set since which Cast takes bfloat16
_INITIALIZERS_ALONE = 4  # the format version since which initializers need not be inputs of the graph


class OnnxWriter(Writer):
    """The model ``source`` with some tensors of other types."""

    source: OnnxFile

    def __init__(self, source: OnnxFile, path: Path) -> None:
        self.source, self._path = source, path
        self._new = onnx_files.read(source.path, False)  # a model of its own, to be changed
        self._taken = set(onnx_graph.values(self._new.model.graph))

    def add(self, name: str, tensor: torch.Tensor, like: str) -> None:
        place = self._new.places[like]
        axes = _leading_axes(place, tensor) if name == f"{like}_scale" else None
        if axes is not None:
            self._unpack(place, like, tensor, axes)
        elif name == like and tensor.dtype in (torch.int8, *_HALF, onnx_files.DTYPES[_computed_in(place)]):
            turned = place.flipped and tensor.dtype != torch.int8  # floats again, as the graph wants them
            self._store(place, like.removeprefix(place.prefix), tensor.t() if turned else tensor)
        else:
            problem = f"would need {name!r} of type {str(tensor.dtype).removeprefix('torch.')}"
            hint = "a graph holds 8 bits with a scale per row, or 16; computekit convert it to safetensors for more"
            raise FileProblem(self.source.path, problem, hint)

    def keep(self, name: str) -> None:
        proto = self._new.places[name].proto
        if proto.data_location == onnx_files.EXTERNAL:
            _fill(proto, self.source.load(name))

    def tie(self, name: str, other: str, like: str) -> None:
        raise AssertionError("a tensor of a graph has one name")

    def finish(self, metadata: dict[str, Any]) -> None:
        compression = metadata.get("compression", {})
        if compression.get("activations", "float") != "float":
            problem, hint = "computes in floats, as its graph says", "leave --activations away"
            raise FileProblem(self.source.path, problem, hint)
        model = self._new.model
        model.ir_version = max(model.ir_version, _INITIALIZERS_ALONE)
        others = [entry for entry in model.metadata_props if entry.key != onnx_files.KEY]
        del model.metadata_props[:]
        model.metadata_props.extend(others)
        if metadata:
            model.metadata_props.add(key=onnx_files.KEY, value=json.dumps(metadata, sort_keys=True))
        size = sum(len(place.proto.raw_data) for place in self._new.places.values())  # of what is written
        content = b"" if size > onnx_files.MAX_BYTES else model.SerializeToString(deterministic=True)
        if not 0 < len(content) <= onnx_files.MAX_BYTES:
            raise FileProblem(self.source.path, "would take more than 2 GB, which one ONNX file cannot hold")
        self._path.write_bytes(content)

    def close(self) -> None:
        """There is nothing to release."""

    def _store(self, place: Place, weight: str, tensor: torch.Tensor) -> None:
        """Put ``tensor`` in the place of the weight that the graph calls ``weight``; integers await their scale."""
        floats = _computed_in(place)
        graph = place.graph
        if place.unpacked_by:
            for node in place.unpacked_by:
                graph.node.remove(node)
            for scale in [proto for proto in graph.initializer if proto.name == f"{weight}_scale"]:
                graph.initializer.remove(scale)
        else:
            self._check_free(weight)
        if place.constant is not None:
            graph.node.remove(place.constant)
            place.proto = graph.initializer.add()
        for value in [value for value in graph.input if value.name == weight]:
            graph.input.remove(value)
        place.unpacked_by, place.constant, place.floats = (), None, floats
        _fill(place.proto, tensor)
        place.proto.name = weight
        if tensor.dtype == torch.int8:
            place.proto.name = f"{weight}_quantized"
        elif place.proto.data_type != floats:
            self._check_cast(tensor.dtype)
            place.proto.name = f"{weight}_half"
            _first(graph, "Cast", [f"{weight}_half"], weight, to=floats)

    def _unpack(self, place: Place, name: str, scale: torch.Tensor, axes: int) -> None:
        """Give the integers of ``name`` a scale for each place along the first ``axes``, and the graph its floats."""
        weight = name.removeprefix(place.prefix)
        shape = (*place.proto.dims[:axes], *(1 for _ in place.proto.dims[axes:]))
        proto = place.graph.initializer.add(name=f"{weight}_scale")
        _fill(proto, scale.to(onnx_files.DTYPES[place.floats]).reshape(shape))
        scaled = weight
        if self.source.infos[name].transposed:
            scaled = f"{weight}_rows"
            _first(place.graph, "Transpose", [scaled], weight)
        _first(place.graph, "Mul", [f"{weight}_cast", f"{weight}_scale"], scaled)
        _first(place.graph, "Cast", [f"{weight}_quantized"], f"{weight}_cast", to=place.floats)

    def _check_free(self, weight: str) -> None:
        """Raise FileProblem if the graph has values called as those are that stand for a weight."""
        for name in (f"{weight}_{part}" for part in ("quantized", "scale", "cast", "rows", "half")):
            if name in self._taken:
                problem = f"has a value called {name!r}, so that {weight!r} cannot be stored in fewer bits"
                raise FileProblem(self.source.path, problem, f"leave it out with --exclude '{weight}'")

    def _check_cast(self, dtype: torch.dtype) -> None:
        version = max((o.version for o in self._new.model.opset_import if o.domain in ("", "ai.onnx")), default=0)
        if dtype == torch.bfloat16 and version < _CAST_BFLOAT16:
            raise FileProblem(self.source.path, f"has operators of set {version}, without bfloat16", "use fp16")


def _leading_axes(place: Place, scale: torch.Tensor) -> int | None:
    """How many axes of a tensor, from the first, ``scale`` has a value for each place of; None if there are none."""
    dims = place.proto.dims
    return next((axes for axes in range(1, len(dims)) if math.prod(dims[:axes]) == scale.numel()), None)


def _computed_in(place: Place) -> int:
    """The code of the type that the graph's nodes see the tensor in."""
    return place.floats or int(place.proto.data_type)


def _first(graph: Any, operator: str, inputs: list[str], output: str, **attributes: int) -> None:
    """Put a node before all others of ``graph``."""
    from onnx import helper

    node = helper.make_node(operator, inputs, [output], name=f"{output}_{operator.lower()}")
    node.attribute.extend(helper.make_attribute(name, value) for name, value in attributes.items())
    graph.node.insert(0, node)


def _fill(proto: Any, tensor: torch.Tensor) -> None:
    """Make ``proto`` hold ``tensor``, in itself, under the name that it has."""
    name = proto.name
    proto.Clear()
    proto.name, proto.data_type, proto.raw_data = name, _CODES[tensor.dtype], bytes(raw.bytes_of(tensor))
    proto.dims.extend(tensor.shape)
