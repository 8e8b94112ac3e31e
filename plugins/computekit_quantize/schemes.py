"""Schemes: how a weight is stored. Other plugins add theirs with the hook ``computekit_quantization_schemes``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import computekit
from computekit import UnknownName

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Scheme:
    """A way of storing a weight (out, ...) in fewer bytes.

    ``store(name, weight, group)`` returns the plain tensors that replace ``weight``, by name, in a layout that
    `computekit.models.compressed` knows; it may choose the integers and scales as it likes. ``bytes(shape, dtype,
    group)`` is how many bytes those tensors take. ``group`` is how many values of a row share a scale (None: all of
    them); it is ``default_group`` unless the user gives another.
    """

    name: str
    summary: str
    store: Callable[[str, torch.Tensor, int | None], list[tuple[str, torch.Tensor]]]
    bytes: Callable[[tuple[int, ...], torch.dtype, int | None], int]
    default_group: int | None = None


@computekit.hookspec
def computekit_quantization_schemes() -> Iterable[Scheme]:  # type: ignore[empty-body]
    """Add ways to store weights, usable as ``computekit quantize --scheme NAME``.

    Example::

        from computekit.models import compressed
        from computekit_quantize import Scheme

        def store(name, weight, group):
            return my_rounding(weight, group).store(name)        # a compressed.QuantizedWeight

        @computekit.hookimpl(optionalhook=True)
        def computekit_quantization_schemes():
            return [Scheme("mine", "my rounding, 4 bits", store, partial(compressed.stored_bytes, bits=4), 32)]
    """


def known() -> dict[str, Scheme]:
    """Every registered scheme by name; the first plugin to give a name wins."""
    from computekit import host

    schemes: dict[str, Scheme] = {}
    for scheme in host.current().collect("computekit_quantization_schemes", Scheme):
        schemes.setdefault(scheme.name, scheme)
    return schemes


def get(name: str) -> Scheme:
    """The scheme called ``name``; raises UnknownName with the nearest ones."""
    schemes = known()
    if name not in schemes:
        raise UnknownName("quantization scheme", name, schemes)
    return schemes[name]


def _store(name: str, weight: torch.Tensor, group: int | None, bits: int) -> list[tuple[str, torch.Tensor]]:
    from computekit.models import compressed

    return compressed.quantize(weight, bits, group, name).store(name)


def _bytes(shape: tuple[int, ...], dtype: torch.dtype, group: int | None, bits: int) -> int:
    from computekit.models import compressed

    return compressed.stored_bytes(shape, dtype, group, bits)


INT8 = Scheme("int8", "8-bit integers, one scale per output channel", partial(_store, bits=8), partial(_bytes, bits=8))
INT4 = Scheme("int4", "4-bit integers, a scale per 32 values", partial(_store, bits=4), partial(_bytes, bits=4), 32)
