"""ONNX graphs: their initializers and constants as tensors (the ``onnx`` extra). The graph is not run here.

The protocol buffer is read whole (it cannot exceed 2 GB); weights in external files are read one at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ..errors import FileProblem, MissingExtra
from . import raw
from .base import ModelFile, TensorInfo

_DTYPES = {
    1: torch.float32, 2: torch.uint8, 3: torch.int8, 4: torch.uint16, 5: torch.int16, 6: torch.int32, 7: torch.int64,
    9: torch.bool, 10: torch.float16, 11: torch.float64, 12: torch.uint32, 13: torch.uint64, 14: torch.complex64,
    15: torch.complex128, 16: torch.bfloat16, 17: torch.float8_e4m3fn, 19: torch.float8_e5m2,
}  # fmt: skip
_EXTERNAL = 1
_GRAPH = 5
_MAX_PREFIX = 1000  # of names; graphs that are nested deeper than that are no model
_MAX_PROTOBUF_BYTES = 2**31
# The first field of a serialized ModelProto: ir_version, a small number.
_FIRST_FIELD = b"\x08"
_SECOND_FIELDS = b"\x12\x1a\x22\x28\x32\x3a\x42"


@dataclass
class OnnxFile(ModelFile):
    """``protos`` are the graph's TensorProtos by name."""

    protos: dict[str, Any] = field(default_factory=dict)
    infos: dict[str, TensorInfo] = field(default_factory=dict)

    @property
    def tensors(self) -> dict[str, TensorInfo]:
        return self.infos

    def load(self, name: str) -> torch.Tensor:
        info, proto = self.infos[name], self.protos[name]
        if proto.data_location == _EXTERNAL:
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
    if path.stat().st_size > _MAX_PROTOBUF_BYTES:
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
    protos: dict[str, Any] = {}
    for name, proto in _tensors(model.graph):
        if name in infos:
            raise FileProblem(path, f"holds two tensors called {name!r}", "the file is damaged")
        infos[name], protos[name] = _info(path, name, proto), proto
    return OnnxFile(path, "onnx", protos=protos, infos=infos)


def _tensors(graph: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The initializers, and what Constant nodes hold: some exporters (Paddle's) keep all weights in those.

    Constants that are single numbers or integers are sizes and axes, no weights. Those of graphs inside (the branches
    of If, the bodies of loops) come after, under the name of the node and the branch.
    """
    for proto in graph.initializer:
        yield prefix + _text(proto.name), proto
    for node in graph.node:
        for attribute in node.attribute if node.op_type == "Constant" and node.output else ():
            dtype = _DTYPES.get(attribute.t.data_type) if attribute.name == "value" else None
            if dtype is not None and dtype.is_floating_point and attribute.t.dims:
                yield prefix + _text(node.output[0]), attribute.t
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == _GRAPH and len(prefix) < _MAX_PREFIX:
                node_name = _text(node.name or (node.output or ("",))[0])
                inner = f"{prefix}{node_name}.{_text(attribute.name)}."
                yield from _tensors(attribute.g, inner)


def _text(name: str | bytes) -> str:
    """A name as text; of one that is no UTF-8, in a damaged file, protobuf gives the bytes."""
    return name if isinstance(name, str) else name.decode("utf-8", "replace")


def _info(path: Path, name: str, proto: Any) -> TensorInfo:
    shape = tuple(proto.dims)
    if proto.data_type not in _DTYPES:
        raise FileProblem(path, f"tensor {name!r} has type {proto.data_type}, which torch does not have")
    if any(size < 0 or size >= 2**48 for size in shape):
        raise FileProblem(path, f"tensor {name!r} has shape {list(shape)}", "the file is damaged")
    dtype = _DTYPES[proto.data_type]
    info = TensorInfo(name, shape, dtype, dtype.itemsize, name)
    nbytes = info.numel * dtype.itemsize
    if proto.data_location == _EXTERNAL:
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
