"""ONNX models: the tensors of their graphs (the ``onnx`` extra), read and, by `onnx_writer`, written in fewer bits.

The graph is not run here; `onnx_graph` says how tensors lie in it.

The protocol buffer is read whole (it cannot exceed 2 GB); weights in external files are read one at a time.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from ..errors import FileProblem, MissingExtra
from . import onnx_graph, raw
from .base import ModelFile, TensorInfo, Writer
from .onnx_graph import Place
from .roles import Role

DTYPES = {
    1: torch.float32, 2: torch.uint8, 3: torch.int8, 4: torch.uint16, 5: torch.int16, 6: torch.int32, 7: torch.int64,
    9: torch.bool, 10: torch.float16, 11: torch.float64, 12: torch.uint32, 13: torch.uint64, 14: torch.complex64,
    15: torch.complex128, 16: torch.bfloat16, 17: torch.float8_e4m3fn, 19: torch.float8_e5m2,
}  # fmt: skip
EXTERNAL = 1
"""The location of data that lies in a file of its own."""
MAX_BYTES = 2**31 - 1
"""What a protocol buffer can have."""
KEY = "computekit"

# The first field of a serialized ModelProto: ir_version, a small number.
_FIRST_FIELD = b"\x08"
_SECOND_FIELDS = b"\x12\x1a\x22\x28\x32\x3a\x42"


@dataclass
class OnnxFile(ModelFile):
    """``model`` is the ModelProto; ``places`` are where its tensors lie, by name."""

    model: Any = None
    places: dict[str, Place] = field(default_factory=dict)
    infos: dict[str, TensorInfo] = field(default_factory=dict)

    @property
    def tensors(self) -> dict[str, TensorInfo]:
        return self.infos

    def load(self, name: str) -> torch.Tensor:
        info, proto = self.infos[name], self.places[name].proto
        if proto.data_location == EXTERNAL:
            path, offset = _external(self.path, proto)
            return raw.read(path, offset, info.dtype, info.numel).reshape(info.shape)
        if proto.raw_data:
            return torch.frombuffer(bytearray(proto.raw_data), dtype=info.dtype).reshape(info.shape)
        from onnx import numpy_helper

        return torch.from_numpy(numpy_helper.to_array(proto).copy()).to(info.dtype).reshape(info.shape)


def sniff(path: Path) -> bool:
    """Whether ``path`` may be an ONNX model: it begins with a small version number and goes on like one."""
    if path.is_dir():
        return False
    with path.open("rb") as stream:
        start = stream.read(3)
    return len(start) == 3 and start[:1] == _FIRST_FIELD and 3 <= start[1] <= 30 and start[2] in _SECOND_FIELDS


def read(path: Path, _trust_pickle: bool) -> OnnxFile:
    """The weights of an ONNX model: of its graph and the graphs inside it.

    Raises:
        MissingExtra: the onnx package is not installed.
        FileProblem: it is no valid model, or its external weights are missing or outside its folder.
    """
    try:
        import onnx
        from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
    except ImportError:
        raise MissingExtra("onnx", "onnx", f"reading {path}, which looks like an ONNX model,") from None
    if path.stat().st_size > MAX_BYTES:
        raise FileProblem(path, "is larger than an ONNX file can be", "is it one?")
    model = onnx.ModelProto()
    try:
        model.ParseFromString(path.read_bytes())
    except DecodeError as error:
        raise FileProblem(path, "is a damaged ONNX file", "get the file again") from error
    if not model.opset_import:  # it comes last, and every model must have it
        problem = "begins like an ONNX model, but has no operator sets"
        raise FileProblem(path, problem, "it is truncated, or of another kind, such as Core ML's")
    infos: dict[str, TensorInfo] = {}
    found: dict[str, Place] = {}
    roles = _roles(model.graph)
    for name, place in onnx_graph.places(model.graph):
        if place.constant is not None and not _is_weight(place.proto):
            continue
        if name in infos:
            raise FileProblem(path, f"holds two tensors called {name!r}", "the file is damaged")
        info = _info(path, name, place.proto)
        role, transposed = roles.get(name, ("", False))
        fits = {"conv": len(info.shape) > 2, "embedding": len(info.shape) == 2}.get(role, len(info.shape) > 1)
        known = replace(info, role=role, transposed=transposed and len(info.shape) == 2) if role and fits else info
        infos[name], found[name] = known, place
    for name, place in found.items():
        scale = infos.get(f"{name}_scale") if place.unpacked_by else None
        if scale is not None and scale.shape and scale.numel:  # in the graph it has the axes of the weight
            infos[scale.name] = replace(scale, shape=(scale.shape[0], scale.numel // scale.shape[0]))
    return OnnxFile(path, "onnx", metadata=_metadata(model), model=model, places=found, infos=infos)


def write(like: ModelFile | None, path: Path) -> Writer:
    """A writer of an ONNX model with the graph of ``like``.

    Raises:
        FileProblem: ``like`` is no ONNX model.
    """
    from .onnx_writer import OnnxWriter

    if not isinstance(like, OnnxFile):
        raise FileProblem(path, "cannot be written without a graph", "only ONNX models become ONNX models")
    return OnnxWriter(like, path)


def _is_weight(proto: Any) -> bool:
    """Whether what a Constant node holds is one; single numbers and integers are sizes and axes."""
    dtype = DTYPES.get(proto.data_type)
    return dtype is not None and dtype.is_floating_point and bool(proto.dims)


def _roles(graph: Any) -> dict[str, tuple[Role, bool]]:
    """What the graph makes of its tensors, and whether their outputs are last; a table that is looked up, and
    multiplied by too, is linear."""
    found: dict[str, tuple[Role, bool]] = {}
    for name, role, transposed in onnx_graph.roles(graph):
        if name not in found or found[name][0] == "embedding":
            found[name] = role, transposed
    return found


def _metadata(model: Any) -> dict[str, Any]:
    """What computekit keeps in a model; nothing if that is no JSON object."""
    [*_, text] = "{}", *(entry.value for entry in model.metadata_props if entry.key == KEY)
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _info(path: Path, name: str, proto: Any) -> TensorInfo:
    shape = tuple(proto.dims)
    if proto.data_type not in DTYPES:
        raise FileProblem(path, f"tensor {name!r} has type {proto.data_type}, which torch does not have")
    if any(size < 0 or size >= 2**48 for size in shape):
        raise FileProblem(path, f"tensor {name!r} has shape {list(shape)}", "the file is damaged")
    dtype = DTYPES[proto.data_type]
    info = TensorInfo(name, shape, dtype, dtype.itemsize, name)
    nbytes = info.numel * dtype.itemsize
    if proto.data_location == EXTERNAL:
        file, offset = _external(path, proto)
        present = max(0, file.stat().st_size - offset) if nbytes else 0
        fits = present >= nbytes
    elif proto.raw_data:
        fits = len(proto.raw_data) == nbytes
    else:
        fits = info.numel <= max(map(len, _value_lists(proto)), default=0)
    if not fits:
        problem = f"tensor {name!r} has less or more data than its shape {list(shape)} needs"
        raise FileProblem(path, problem, "the file is damaged")
    return TensorInfo(name, shape, dtype, nbytes, name)


def _value_lists(proto: Any) -> list[Any]:
    return [proto.float_data, proto.int32_data, proto.int64_data, proto.double_data, proto.uint64_data]


def _external(path: Path, proto: Any) -> tuple[Path, int]:
    """The file and offset of external data; only files in the model's own folder are opened."""
    about = {entry.key: entry.value for entry in proto.external_data}
    file = path.parent / about.get("location", "")
    if not file.is_file() or path.parent.resolve() not in file.resolve().parents:
        raise FileProblem(path, f"keeps weights in {about.get('location')!r}, which is not in its folder")
    offset = about.get("offset", "0")
    if not offset.isdigit():
        raise FileProblem(path, f"has the offset {offset!r}", "the file is damaged")
    return file, int(offset)
