"""What one call of an operator does: its results' shapes and its costs, remembered for calls of the same shapes.

A loop over tokens calls the same few operators thousands of times; on the meta device their shapes take far longer to
infer than to look up. Importing this imports torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from . import formulas
from .copies import nbytes, tensors


@dataclass(frozen=True)
class Effect:
    """Costs of one call (``other`` is None without a formula); ``shapes`` only where a call can be left out."""

    name: str
    contraction: int
    other: int | None
    written: int
    kept: int
    read: int
    is_view: bool
    shapes: tuple[tuple[Any, ...], ...] | None
    several: bool

    def result(self) -> Any:
        """New meta tensors like those that the call gave."""
        made = [
            torch.empty_strided(size, stride, dtype=dtype, device="meta") for size, stride, dtype in self.shapes or ()
        ]
        return tuple(made) if self.several else made[0]


def effect(func: Any, args: Any, out: Any) -> Effect:
    """What ``func(*args)`` did, which gave ``out``."""
    name = func.overloadpacket.__name__ if hasattr(func, "overloadpacket") else str(func)
    contraction = formulas.contraction(name, args, out)
    results = tensors(out)
    return Effect(
        name=name,
        contraction=contraction or 0,
        other=formulas.other(func, name, args, out) if contraction is None else 0,
        written=0 if func.is_view else sum(t.numel() for t in results),
        kept=sum(nbytes(t) for t in results),
        read=sum(nbytes(t) for t in tensors(args)),
        is_view=func.is_view,
        shapes=tuple((t.shape, t.stride(), t.dtype) for t in results) if _repeatable(out) else None,
        several=isinstance(out, tuple),
    )


def signature(func: Any, args: Any, kwargs: Any) -> Any:
    """What decides the shapes that ``func`` gives; None where its result is more than new meta tensors."""
    if func.is_view or not hasattr(func, "_schema") or func._schema.is_mutable:
        return None
    if any(r.alias_info is not None for r in func._schema.returns):
        return None
    try:
        return func, _described(args), _described(tuple(sorted(kwargs.items())) if kwargs else ())
    except _Undescribed:
        return None


class _Undescribed(Exception):
    """An argument that shapes do not describe."""


def _described(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return tuple(_described(item) for item in value)
    if isinstance(value, torch.Tensor):
        if type(value) not in (torch.Tensor, nn.Parameter) or not value.is_meta or value.is_complex():
            raise _Undescribed
        return value.shape, value.stride(), value.dtype
    if value is None or isinstance(value, (bool, int, float, str, torch.dtype, torch.device, torch.layout)):
        return type(value), value
    if isinstance(value, torch.memory_format):
        return value
    raise _Undescribed


def _repeatable(out: Any) -> bool:
    whole = out if isinstance(out, tuple) else (out,)
    return all(type(t) is torch.Tensor and t.is_meta and t.layout == torch.strided for t in whole)
