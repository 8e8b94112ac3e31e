"""Modules that run on compressed weights: integers and scales stay in memory, floats exist only while they are used.

`compress_parameter` works on any module: it gives the module a subclass of its own class in which the parameter is
a property that dequantizes. The module keeps its ``forward``, and its state_dict has the names under which `compressed`
stores weights, so saving the module and loading the file again is a round trip.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ComputekitError, FileProblem
from . import compressed
from .compressed import QuantizedWeight

if TYPE_CHECKING:
    import torch
    from torch import nn


def load_into(module: nn.Module, path: str | Path) -> nn.Module:
    """Put the weights of the file ``path``, compressed or not, into ``module``; returns ``module``, in eval mode.

    Raises:
        FileProblem: the file is no model file, or its tensors do not fit the module's.
    """
    from . import open_model

    source = open_model(path)
    try:
        return fill(module, {name: source.load(name) for name in source.tensors}).eval()
    except StateMismatch as error:
        raise FileProblem(path, str(error), "is it another architecture?") from error


class StateMismatch(ComputekitError):
    """Weights do not fit a module; the message names the first few."""


def fill(module: nn.Module, state: Mapping[str, torch.Tensor]) -> nn.Module:
    """Load a state_dict whose weights may be compressed; parameters that ``module`` ties stay tied.

    Raises:
        StateMismatch: a name or a shape does not fit.
    """
    aliases = _aliases(module)
    packed = compressed.find(state)
    given = {alias for name in state for alias in aliases.get(name, ())}
    for name, bits in packed.items():
        weight = QuantizedWeight.restore(name, state.__getitem__, bits)
        if name not in aliases:
            raise StateMismatch(f"holds {name!r}, which {type(module).__name__} does not have")
        compress_parameter([_owner(module, alias) for alias in aliases[name]], weight)
        given.update(part for alias in aliases[name] for part in compressed.parts(alias, bits))
    try:
        result = module.load_state_dict(dict(state), strict=False)
    except RuntimeError as error:
        raise StateMismatch("; ".join(line.strip() for line in str(error).splitlines()[1:4])) from error
    missing = [name for name in result.missing_keys if name not in given]
    if missing or result.unexpected_keys:
        raise StateMismatch(
            "; ".join(
                f"{what} {len(names)} tensors ({', '.join(names[:3])}{', ...' if len(names) > 3 else ''})"
                for what, names in (("lacks", missing), ("has unknown", result.unexpected_keys))
                if names
            )
        )
    return module


def compress_parameter(places: Sequence[tuple[nn.Module, str]], weight: QuantizedWeight) -> None:
    """Replace a parameter by ``weight`` in all its ``places`` (module, attribute); it still reads as floats there.

    Raises:
        StateMismatch: the shapes differ.
    """
    from torch import nn

    (_, values), *others = weight.store("")
    shared = nn.Parameter(values, requires_grad=False)
    for owner, attribute in places:
        shape = tuple(getattr(owner, attribute).shape)
        if shape != tuple(weight.values.shape):
            raise StateMismatch(
                f"{attribute!r} has shape {tuple(weight.values.shape)}, {type(owner).__name__} has {shape}"
            )
        base = getattr(owner, "_uncompressed", type(owner))
        owner.__class__ = _compressed_class(base, (*getattr(owner, "_compressed", ()), (attribute, weight.bits)))
        main = compressed.parts(attribute, weight.bits)[0]
        if main != attribute:
            del owner._parameters[attribute]
        # not register_parameter: it refuses names that the class has, and the property bears the parameter's name
        owner._parameters[main] = shared
        for suffix, tensor in others:
            owner.register_buffer(f"{attribute}{suffix}", tensor)


def _owner(module: nn.Module, name: str) -> tuple[nn.Module, str]:
    """The module that holds the parameter ``name``, and the attribute that it is there."""
    path, _, attribute = name.rpartition(".")
    return module.get_submodule(path), attribute


@functools.cache
def _compressed_class(base: type[nn.Module], attributes: tuple[tuple[str, int], ...]) -> type[nn.Module]:
    """A subclass of ``base`` whose ``attributes`` (name, bits) are properties that dequantize."""
    from torch import nn

    members: dict[str, Any] = {"_uncompressed": base, "_compressed": attributes}
    for attribute, bits in attributes:
        members[attribute] = property(functools.partial(_read, attribute=attribute, bits=bits))
    if issubclass(base, nn.RNNBase):
        members["_flat_weights"] = property(_flat_weights, lambda self, value: None)
    if issubclass(base, nn.Embedding):
        members["forward"] = _embed
    return type(f"Compressed{base.__name__}", (base,), members)


def _stored(module: nn.Module, attribute: str, bits: int) -> list[torch.Tensor]:
    return [
        module._parameters.get(part, module._buffers.get(part))  # type: ignore[misc]
        for part in compressed.parts(attribute, bits)
    ]


def _read(module: nn.Module, attribute: str, bits: int) -> torch.Tensor:
    """The whole parameter in floating point."""
    if bits == 8:
        values, scale = _stored(module, attribute, bits)
    else:
        packed, scale, shape = _stored(module, attribute, bits)
        values = compressed.unpack(packed, tuple(shape.tolist()))
    return compressed.dequantize(values, scale)


def _flat_weights(module: nn.RNNBase) -> list[torch.Tensor]:
    """What the recurrent kernels read: `nn.RNNBase` keeps its own list of the parameters."""
    return [getattr(module, name) for name in module._flat_weights_names]


def _embed(module: nn.Embedding, input: torch.Tensor) -> torch.Tensor:
    """Look rows up first and dequantize only those. input (...) -> (..., embedding_dim)."""
    bits = dict(module._compressed)["weight"]  # type: ignore[call-overload]
    values, scale = (part[input.reshape(-1)] for part in _stored(module, "weight", bits)[:2])
    if bits == 4:
        values = compressed.unpack(values, (values.shape[0], module.embedding_dim))
    return compressed.dequantize(values, scale).reshape(*input.shape, module.embedding_dim)


def _aliases(module: nn.Module) -> dict[str, tuple[str, ...]]:
    """Every parameter name of ``module``, and all names that the same parameter goes by."""
    for name, part in module.named_modules():
        if hasattr(part, "_compressed"):
            raise StateMismatch(
                f"cannot be loaded: module {name!r} holds compressed weights already; build a fresh one"
            )
    names: dict[int, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return {name: tuple(group) for group in names.values() for name in group}
