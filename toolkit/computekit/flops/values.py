"""Runs on the meta device in which the values that do not depend on weights are known.

Code that looks at its inputs (where a mask ends, how many patches an image has) cannot run on shapes alone, and needs
no weight for it. Importing this imports torch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from .copies import tensors

_MOST = 1 << 24
"""Elements of a new tensor above which its values are not kept: as inputs and masks of one sample do not have."""
_META, _CPU = torch.device("meta"), torch.device("cpu")


def call(func: Any, args: Any, kwargs: Any) -> Any:
    """``func(*args, **kwargs)`` on the CPU where all tensors have values, else on the meta device."""
    kwargs = dict(kwargs)
    given = tensors((args, kwargs))
    unknown = any(t.is_meta for t in given)
    if kwargs.get("device") is not None:
        kwargs["device"] = _META if unknown or (not given and _elements(args) > _MOST) else _CPU
    if not unknown or all(t.is_meta for t in given):
        return func(*args, **kwargs)
    if func._schema.is_mutable and not args[0].is_meta:
        return args[0]  # what is written has no values; the shape is that of before
    if func.overloadpacket in _BY_INDEX:
        args = (args[0], _positions(args[1]), *args[2:])
    args, kwargs = tree_map_only(torch.Tensor, lambda t: t.to(_META), (args, kwargs))
    return func(*args, **kwargs)


_BY_INDEX = {torch.ops.aten.index, torch.ops.aten.index_put, torch.ops.aten.index_put_, torch.ops.aten._unsafe_index}


def _positions(indices: Any) -> list[Any]:
    """Indices with masks, whose values decide a shape, written as the positions that they keep."""
    found: list[Any] = []
    for index in indices:
        known = index is not None and not index.is_meta and index.dtype == torch.bool
        found += index.nonzero().unbind(1) if known else [index]
    return found


def _elements(args: Any) -> int:
    """Elements of a new tensor, whose size ``args`` begin with; zero for a range, which is small."""
    return int(torch.Size(args[0]).numel()) if args and isinstance(args[0], (list, tuple)) else 0
