"""Torch checkpoints as inert data: lazy tensors, and what the pickle would import.

The argument lists of ``_rebuild_tensor_v2`` and its siblings are those of ``torch/_utils.py``; the persistent id
``("storage", type, key, location, numel)`` is that of ``torch/serialization.py``.
"""

from __future__ import annotations

import functools
import math
import reprlib
import struct
from dataclasses import dataclass, replace
from typing import IO, Any

import torch

from . import pickles
from .pickles import Call, Global, Malformed, Ordered, Persistent

_STORAGE_DTYPES = {
    "DoubleStorage": torch.float64,
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
    "ComplexFloatStorage": torch.complex64,
    "ComplexDoubleStorage": torch.complex128,
    "UntypedStorage": torch.uint8,
}
_STORAGE_OF = {dtype: name for name, dtype in _STORAGE_DTYPES.items() if name != "UntypedStorage"}
_OPAQUE_STORAGES = {
    "QInt8Storage": 1,
    "QUInt8Storage": 1,
    "QInt32Storage": 4,
    "QUInt4x2Storage": 1,
    "QUInt2x4Storage": 1,
}
_MAX_TENSOR_BYTES = 1 << 46

_WITH_ATTRIBUTES = Global("torch._tensor", "_rebuild_from_type_v2")
_NUMPY = ("numpy.core.multiarray", "numpy._core.multiarray")
_NUMPY_NUMBERS = {"f8": "d", "f4": "f", "f2": "e", "i8": "q", "i4": "i", "i2": "h", "i1": "b",
                  "u8": "Q", "u4": "I", "u2": "H", "u1": "B", "b1": "?"}  # fmt: skip

# What torch.load(weights_only=True) accepts, as far as state_dicts and checkpoints use it.
_HARMLESS = {
    "collections.OrderedDict", "collections.Counter", "torch.nn.parameter.Parameter", "torch.Size", "torch.Tensor",
    "torch.device", "torch.serialization._get_layout", "torch._tensor._rebuild_from_type_v2", "_codecs.encode",
    "builtins.bytearray", "builtins.set", "builtins.complex", "torch.storage.UntypedStorage",
    "torch.storage.TypedStorage",
}  # fmt: skip
_REBUILD = {
    "_rebuild_parameter", "_rebuild_parameter_with_state", "_rebuild_qtensor", "_rebuild_tensor", "_rebuild_tensor_v2",
    "_rebuild_tensor_v3", "_rebuild_sparse_tensor", "_rebuild_meta_tensor_no_storage", "_rebuild_nested_tensor",
    "_rebuild_wrapper_subclass", "_rebuild_device_tensor_from_numpy", "_rebuild_device_tensor_from_cpu_tensor",
}  # fmt: skip
_SCHEMES = ("per_tensor_affine", "per_tensor_symmetric", "per_channel_affine", "per_channel_symmetric",
            "per_channel_affine_float_qparams")  # fmt: skip


@dataclass(eq=False)
class Storage:
    """Bytes outside the pickle: ``count`` elements of ``itemsize`` bytes under ``key``."""

    key: str
    kind: Global
    count: int
    dtype: torch.dtype | None
    itemsize: int

    @property
    def nbytes(self) -> int:
        return self.count * self.itemsize

    def persistent(self, key: str) -> Persistent:
        """What is written for it, under ``key``: always on the CPU, so that every machine opens the file."""
        return Persistent(("storage", self.kind, key, "cpu", self.count))


@dataclass(eq=False)
class LazyTensor:
    """A strided tensor of the checkpoint that has not been read. ``call`` is what rebuilds it."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    call: Call
    parameter: bool = False

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.numel * self.dtype.itemsize

    @property
    def span(self) -> int:
        """Elements of the storage from the tensor's first to its last."""
        if self.numel == 0:
            return 0
        return 1 + sum((size - 1) * step for size, step in zip(self.shape, self.stride, strict=True))

    @property
    def contiguous(self) -> bool:
        """Whether the tensor's values lie in row-major order without gaps."""
        step = 1
        for size, stride in zip(reversed(self.shape), reversed(self.stride), strict=True):
            if size != 1 and stride != step:
                return self.numel == 0
            step *= size
        return True

    @property
    def identity(self) -> tuple[Any, ...]:
        """Equal for two tensors that are the same bytes in the same order; empty tensors share nothing."""
        if self.numel == 0:
            return ("empty", id(self))
        return (self.storage.key, self.offset * self.dtype.itemsize, self.shape, self.stride, str(self.dtype))


def parse(stream: IO[bytes]) -> Any:
    """The object of a checkpoint's pickle: plain containers, `LazyTensor`, and inert calls.

    Raises:
        Malformed: not a pickle, or a tensor that does not fit its storage.
    """
    storages: dict[str, Storage] = {}
    return pickles.parse(stream, _reduce, functools.partial(_persistent, storages))


def _persistent(storages: dict[str, Storage], identifier: Any) -> Any:
    if isinstance(identifier, tuple) and len(identifier) == 4 and identifier[0] == "module":
        return identifier[1]  # a class, which files of torch < 1.6 keep together with its source code
    if not isinstance(identifier, tuple) or len(identifier) < 5 or identifier[0] != "storage":
        raise Malformed(f"it refers to {reprlib.repr(identifier)}, which is no storage")
    _, kind, key, _device, count, *view = identifier
    if not isinstance(kind, Global) or not isinstance(key, (str, int)) or not isinstance(count, int) or count < 0:
        raise Malformed("a storage is described wrongly")
    if view and view[0] is not None:
        raise Malformed("views of storages, which torch stopped writing in 2016, are not supported")
    dtype = _STORAGE_DTYPES.get(kind.name)
    itemsize = dtype.itemsize if dtype is not None else _OPAQUE_STORAGES.get(kind.name)
    if itemsize is None or count * itemsize > _MAX_TENSOR_BYTES:
        raise Malformed(f"storage {key!r} is {count} elements of {kind}")
    storage = Storage(str(key), kind, count, dtype, itemsize)
    known = storages.setdefault(storage.key, storage)
    if known.nbytes != storage.nbytes:
        raise Malformed(f"storage {key!r} is described twice, with different sizes")
    return known if known.kind == storage.kind else storage


def _reduce(function: Any, arguments: Any) -> Any:
    call = Call(function, arguments)
    if function == Global("builtins", "bytes") and not arguments:
        return b""  # protocol 2 has no other way to write it
    if isinstance(function, Global) and function.name == "scalar" and function.module in _NUMPY:
        return _numpy_scalar(call)
    if function == _WITH_ATTRIBUTES and len(arguments) == 4 and isinstance(arguments[2], tuple):
        plain = _reduce(arguments[0], arguments[2])
        return replace(plain, call=call) if isinstance(plain, LazyTensor) else call
    if not isinstance(function, Global) or function.module != "torch._utils":
        return call
    if function.name in ("_rebuild_parameter", "_rebuild_parameter_with_state") and arguments:
        data = arguments[0]
        if isinstance(data, LazyTensor):
            return replace(data, call=call, parameter=True)
        return call
    if function.name not in ("_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_tensor_v3") or len(arguments) < 4:
        return call
    storage, offset, shape, stride = arguments[:4]
    if not isinstance(storage, Storage):
        return call
    dtype = storage.dtype
    if function.name == "_rebuild_tensor_v3" and len(arguments) >= 7:
        dtype = _dtype(arguments[6])
    if dtype is None:
        return call
    return tensor(storage, offset, shape, stride, dtype, call)


def tensor(storage: Storage, offset: Any, shape: Any, stride: Any, dtype: torch.dtype, call: Call) -> LazyTensor:
    """A lazy tensor, checked to lie inside its storage (Malformed otherwise)."""
    lazy = LazyTensor(storage, offset, _sizes(shape), _sizes(stride), dtype, call)
    _check_fits(lazy)
    return lazy


def _numpy_scalar(call: Call) -> Any:
    """A numpy number as a plain one: many checkpoints keep their best accuracy so, and weights_only refuses it."""
    kind, content = call.arguments if len(call.arguments) == 2 else (None, None)
    values = numpy_values(kind, content)
    return call if values is None or len(values) != 1 else values[0]


def numpy_values(kind: Any, content: Any) -> list[Any] | None:
    """The numbers in the bytes ``content`` of numpy's dtype ``kind``; None if they are no plain numbers."""
    if isinstance(content, Call) and content.function == Global("_codecs", "encode"):
        content = str(content.arguments[0]).encode("latin-1", "replace")
    code = kind.arguments[0] if isinstance(kind, Call) and kind.function == Global("numpy", "dtype") else None
    form = _NUMPY_NUMBERS.get(code) if isinstance(code, str) else None
    swapped = isinstance(kind, Call) and kind.has_state and ">" in str(kind.state)
    if form is None or not isinstance(content, bytes) or len(content) % struct.calcsize(f"<{form}"):
        return None
    return [value for (value,) in struct.iter_unpack(f"{'>' if swapped else '<'}{form}", content)]


def _dtype(value: Any) -> torch.dtype:
    found = getattr(torch, value.name, None) if isinstance(value, Global) and value.module == "torch" else None
    if not isinstance(found, torch.dtype):
        raise Malformed(f"{value} is not a dtype of this torch")
    return found


def _sizes(value: Any) -> tuple[int, ...]:
    if isinstance(value, Call) and value.function == Global("torch", "Size") and len(value.arguments) == 1:
        value = value.arguments[0]
    if not isinstance(value, (tuple, list)) or not all(isinstance(v, int) and 0 <= v < 2**62 for v in value):
        raise Malformed("a tensor's shape or stride is not a list of sizes")
    return tuple(value)


def _check_fits(tensor: LazyTensor) -> None:
    """Refuse a tensor that reaches outside its storage, or that unfolds to far more than it (stride 0)."""
    if len(tensor.shape) != len(tensor.stride) or not isinstance(tensor.offset, int) or tensor.offset < 0:
        raise Malformed("a tensor's shape, stride and offset do not belong together")
    available = tensor.storage.nbytes // tensor.dtype.itemsize
    if tensor.numel and tensor.offset + tensor.span > available:
        raise Malformed(
            f"a tensor of shape {list(tensor.shape)} reaches past the end of storage {tensor.storage.key!r}"
        )
    if tensor.nbytes > max(1 << 26, 16 * tensor.storage.nbytes):
        raise Malformed(f"a tensor of shape {list(tensor.shape)} repeats a storage of {tensor.storage.nbytes} bytes")


def to_call(value: Any) -> Any:
    """For `pickle_writing.emit`: lazy tensors and storages as the pickle spells them."""
    if isinstance(value, LazyTensor):
        return value.call
    if isinstance(value, Storage):
        return value.persistent(value.key)
    return value


def tensor_call(storage: Storage, shape: tuple[int, ...], dtype: torch.dtype, parameter: bool) -> Call:
    """What torch would write for a contiguous tensor over ``storage``."""
    stride = torch.empty(shape, device="meta").stride()
    hooks = Ordered()
    if dtype in _STORAGE_OF:
        call = Call(Global("torch._utils", "_rebuild_tensor_v2"), (storage, 0, shape, tuple(stride), False, hooks))
    else:
        kind = Global("torch", str(dtype).removeprefix("torch."))
        arguments = (storage, 0, shape, tuple(stride), False, hooks, kind)
        call = Call(Global("torch._utils", "_rebuild_tensor_v3"), arguments)
    if parameter:
        call = Call(Global("torch._utils", "_rebuild_parameter"), (call, dtype.is_floating_point, Ordered()))
    return call


def bare(lazy: LazyTensor) -> LazyTensor:
    """The same tensor as an ordinary one, without a class, hooks and attributes of its own."""
    plain = tensor_call(lazy.storage, lazy.shape, lazy.dtype, parameter=False)
    plain.arguments = (lazy.storage, lazy.offset, lazy.shape, lazy.stride, *plain.arguments[4:])
    if lazy.parameter:
        arguments = (plain, lazy.dtype.is_floating_point, Ordered())
        plain = Call(Global("torch._utils", "_rebuild_parameter"), arguments)
    return replace(lazy, call=plain)


def new_storage(key: str, dtype: torch.dtype, numel: int) -> Storage:
    """The storage of a new tensor: typed where torch has a storage class for the dtype."""
    if dtype in _STORAGE_OF:
        return Storage(key, Global("torch", _STORAGE_OF[dtype]), numel, dtype, dtype.itemsize)
    kind = Global("torch.storage", "UntypedStorage")
    return Storage(key, kind, numel * dtype.itemsize, torch.uint8, 1)


# -- what a checkpoint holds -----------------------------------------------------------------------------------------


def contents(value: Any) -> list[Any]:
    """For `pickles.walk`: what lazy tensors and storages consist of."""
    if isinstance(value, LazyTensor):
        return [value.call]
    if isinstance(value, Storage):
        return [value.kind]
    return []


def imports(root: Any) -> list[str]:
    """Names that the pickle would import, sorted."""
    return sorted({str(value) for value in pickles.walk(root, contents) if isinstance(value, Global)})


def is_harmless(name: str) -> bool:
    """Whether ``torch.load(weights_only=True)`` lets a pickle import ``name``."""
    if name in _HARMLESS:
        return True
    module, _, last = name.rpartition(".")
    if module == "torch._utils":
        return last in _REBUILD
    if module in ("torch", "torch.cuda", "torch.storage"):
        return (
            last in _STORAGE_DTYPES
            or last in _OPAQUE_STORAGES
            or (module == "torch" and (last in _SCHEMES or isinstance(getattr(torch, last, None), torch.dtype)))
        )
    return False
