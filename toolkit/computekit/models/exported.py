"""Exported programs (torch.export.save, ``.pt2``): their weights. Their graph is run by `ExportedFile.program` alone.

The archive lists its weights in ``data/weights/model_weights_config.json`` and keeps each as raw bytes; layout:
``torch/export/pt2_archive`` and the enumeration ``ScalarType`` in ``torch/_export/serde/schema.py``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..errors import FileProblem
from . import checkpoint, torch_files
from .checkpoint import LazyTensor
from .pickles import Call, Malformed, Ordered
from .torch_files import Archive, TorchFile

_CONFIG = "data/weights/model_weights_config.json"
_DTYPES = {
    1: torch.uint8, 2: torch.int8, 3: torch.int16, 4: torch.int32, 5: torch.int64, 6: torch.float16, 7: torch.float32,
    8: torch.float64, 10: torch.complex64, 11: torch.complex128, 12: torch.bool, 13: torch.bfloat16, 28: torch.uint16,
    29: torch.float8_e4m3fn, 30: torch.float8_e5m2, 31: torch.float8_e4m3fnuz, 32: torch.float8_e5m2fnuz,
    33: torch.float8_e8m0fnu, 34: torch.uint32, 35: torch.uint64,
}  # fmt: skip
_STRIDED = 7


class ExportedFile(TorchFile):
    """An exported program; running it takes trust, because torch.export.load unpickles what else is in the archive."""

    def program(self, trust_pickle: bool) -> nn.Module:
        if not trust_pickle:
            problem = "is an exported program, and torch unpickles parts of it to run it"
            raise FileProblem(self.path, problem, "--trust-pickle if you trust its author")
        try:
            module: nn.Module = torch.export.load(self.path).module()
        except Exception as error:  # the loader fails in as many ways as there are versions of the format
            raise FileProblem(self.path, "is a program that this torch cannot load", str(error)[:200]) from error
        return module


def sniff(path: Path) -> bool:
    """Whether ``path`` is an archive of torch.export.save."""
    names = torch_files.member_names(path)
    return torch_files.has_member(names, "archive_format") or "serialized_exported_program.json" in names


def read(path: Path, _trust_pickle: bool) -> ExportedFile:
    """The parameters and persistent buffers of an exported program.

    Raises:
        FileProblem: the archive is damaged, or from a torch before 2.9, which kept pickles in it.
    """
    with torch_files.archive(path) as opened:
        if _CONFIG not in opened.members:
            problem = "is an exported program without a list of weights, from torch < 2.9 or compiled by AOTInductor"
            raise FileProblem(path, problem, "export it again with torch.export.save")
        try:
            entries = json.loads(opened.content(_CONFIG))["config"]
            state = Ordered((str(name), _tensor(path, opened, name, entry)) for name, entry in entries.items())
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise Malformed(f"its list of weights is wrong: {error}") from error
        return ExportedFile(path, "pt2", root=state, extents=opened.extents("data/weights/"))


def _tensor(path: Path, opened: Archive, name: str, entry: dict[str, Any]) -> LazyTensor:
    if entry["use_pickle"]:
        raise FileProblem(path, f"keeps weight {name!r} as a pickle", "only plain tensors are read from .pt2 files")
    meta, member = entry["tensor_meta"], f"data/weights/{entry['path_name']}"
    if meta["layout"] != _STRIDED or member not in opened.members or meta["dtype"] not in _DTYPES:
        raise Malformed(f"weight {name!r} is missing, or no plain tensor")
    dtype = _DTYPES[meta["dtype"]]
    shape, stride = ([size["as_int"] for size in meta[key]] for key in ("sizes", "strides"))
    count = opened.members[member].file_size // dtype.itemsize
    storage = checkpoint.new_storage(entry["path_name"], dtype, count)
    return checkpoint.tensor(storage, meta["storage_offset"]["as_int"], shape, stride, dtype, Call(None, ()))
