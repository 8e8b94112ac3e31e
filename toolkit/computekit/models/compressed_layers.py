"""Modules that run on compressed weights: integers and scales stay in memory, floats exist only while they are used.

`compress_parameter` works on any module: it gives the module a subclass of its own class in which the parameter is
a property that dequantizes. The module keeps its ``forward``, and its state_dict has the names under which `compressed`
stores weights, so saving the module and loading the file again is a round trip.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from . import compressed
from .compressed import Layout, QuantizedWeight

if TYPE_CHECKING:
    import torch
    from torch import nn


_Forward = Callable[["nn.Linear", "torch.Tensor"], "torch.Tensor"]
_Entry = tuple[str, Layout, tuple[int, ...]]  # the attribute, how it is stored, the weight's own shape


def compress_parameter(
    places: Sequence[tuple[nn.Module, str]], weight: QuantizedWeight, activations: str | None = None
) -> None:
    """Replace a parameter by ``weight``, of the same shape, in all its ``places`` (module, attribute).

    With ``activations`` "dynamic", linear layers with 8-bit weights and a scale per row compute in 8 bits on devices
    that have a kernel for it.
    """
    from torch import nn

    owner, attribute = places[0]
    weight = replace(
        weight, scale=weight.scale.to(getattr(owner, attribute).dtype)
    )  # the module's type, not the file's
    (_, values), *others = weight.store("")
    shared = nn.Parameter(values, requires_grad=False)
    shape = tuple(weight.values.shape)
    for owner, attribute in places:
        base: Any = getattr(type(owner), "_uncompressed", type(owner))
        before: tuple[_Entry, ...] = getattr(type(owner), "_compressed", ())
        entry = (attribute, weight.layout, shape)
        owner.__class__ = _compressed_class(base, (*before, entry), _linear_forward(weight, activations))
        main = weight.layout.parts(attribute)[0]
        if main != attribute:
            del owner._parameters[attribute]
        # not register_parameter: it refuses names that the class has, and the property bears the parameter's name
        owner._parameters[main] = shared
        for suffix, tensor in others:
            owner.register_buffer(f"{attribute}{suffix}", tensor)


def _linear_forward(weight: QuantizedWeight, activations: str | None) -> _Forward | None:
    """How a linear layer multiplies by ``weight`` without dequantizing it; None if it has no way."""
    import torch

    if weight.values.element_size() != 1 or weight.scale.shape[1] != 1 or weight.zero_point is not None:
        return None
    if activations == "dynamic":
        return _multiply_integers
    return _read_integers_once if weight.layout.bits == 8 and weight.values.dtype == torch.int8 else None


@functools.cache
def _compressed_class(
    base: type[nn.Module], attributes: tuple[_Entry, ...], linear_forward: _Forward | None
) -> type[nn.Module]:
    """A subclass of ``base`` whose ``attributes`` are properties that dequantize."""
    from torch import nn

    members: dict[str, Any] = {"_uncompressed": base, "_compressed": attributes}
    for attribute, layout, shape in attributes:
        members[attribute] = property(functools.partial(_read, attribute=attribute, layout=layout, shape=shape))
    if issubclass(base, nn.RNNBase):
        members["_flat_weights"] = property(_flat_weights, lambda self, value: None)
    if base.forward is nn.Embedding.forward:
        members["forward"] = _embed
    if linear_forward is not None and base.forward is nn.Linear.forward:
        members["forward"] = linear_forward
    return type(f"Compressed{base.__name__}", (base,), members)


def _stored(module: nn.Module, attribute: str, layout: Layout) -> dict[str, torch.Tensor]:
    """The tensors that stand for a parameter, by what their names add to its own."""
    return {
        part.removeprefix(attribute): module._parameters.get(part, module._buffers.get(part))  # type: ignore[misc]
        for part in layout.parts(attribute)
    }


def _read(module: nn.Module, attribute: str, layout: Layout, shape: tuple[int, ...]) -> torch.Tensor:
    """The whole parameter in floating point."""
    stored = _stored(module, attribute, layout)
    scale, zero_point = stored["_scale"], stored.get("_zero_point")
    if layout.bits == 8:
        return compressed.dequantize(stored[""], scale, zero_point)
    if zero_point is not None:
        zero_point = compressed.unpack_zero_point(zero_point, scale.shape)
    return compressed.dequantize(compressed.unpack(stored["_packed"], shape), scale, zero_point)


def _flat_weights(module: nn.RNNBase) -> list[torch.Tensor]:
    """What the recurrent kernels read: `nn.RNNBase` keeps its own list of the parameters."""
    return [getattr(module, name) for name in module._flat_weights_names]


def _embed(module: nn.Embedding, input: torch.Tensor) -> torch.Tensor:
    """Look rows up first and dequantize only those. input (...) -> (..., embedding_dim)."""
    from torch import nn

    if module.max_norm is not None:  # renormalizes the table itself
        return nn.Embedding.forward(module, input)
    layout: Layout = type(module)._compressed[0][1]  # type: ignore[attr-defined]
    stored = _stored(module, "weight", layout)
    rows = input.reshape(-1)
    values, scale, zero_point = stored[layout.parts("")[0]][rows], stored["_scale"][rows], stored.get("_zero_point")
    if zero_point is not None:
        zero_point = (
            zero_point if layout.bits == 8 else compressed.unpack_zero_point(zero_point, stored["_scale"].shape)
        )
        zero_point = zero_point[rows]
    if layout.bits == 4:
        values = compressed.unpack(values, (values.shape[0], module.embedding_dim))
    return compressed.dequantize(values, scale, zero_point).reshape(*input.shape, module.embedding_dim)


def _multiply_integers(module: nn.Linear, input: torch.Tensor) -> torch.Tensor:
    """The layer in 8 bits, where the device has a kernel for it. input (..., in_features) -> (..., out_features)."""
    import torch
    from torch import nn

    from . import int8_linear, scaled_linear

    stored = _stored(module, "weight", Layout(8))
    if torch.compiler.is_compiling() and stored[""].dtype == torch.int8:  # a compiler fuses the passes by itself
        return scaled_linear.linear(input, stored[""], stored["_scale"], module.bias)
    if torch.is_grad_enabled() and input.requires_grad:  # rounding has no gradient
        return nn.Linear.forward(module, input)
    if input.device.type != "cpu" or stored[""].dtype != torch.int8:
        if scaled_linear.fits(input, stored[""]):
            return scaled_linear.linear(input, stored[""], stored["_scale"], module.bias)
        return nn.Linear.forward(module, input)
    how = int8_linear.weight_only if int8_linear.generates(input) else int8_linear.linear
    return how(input, stored[""], stored["_scale"], module.bias)


def _read_integers_once(module: nn.Linear, input: torch.Tensor) -> torch.Tensor:
    """The layer in floating point, but for a decoder's single tokens in bfloat16: they cost no copy of the weight."""
    import torch
    from torch import nn

    from . import int8_linear

    fits = input.device.type == "cpu" and input.dtype == torch.bfloat16 and not input.requires_grad
    if not fits or not int8_linear.generates(input):
        return nn.Linear.forward(module, input)
    stored = _stored(module, "weight", Layout(8))
    return int8_linear.weight_only(input, stored[""], stored["_scale"], module.bias)


def places(module: nn.Module) -> dict[str, tuple[tuple[nn.Module, str], ...]]:
    """Where each parameter of ``module`` lives, by name: (owner, attribute), several if it is tied."""
    found: dict[int, list[tuple[nn.Module, str]]] = {}
    names: dict[str, int] = {}
    for path, owner in module.named_modules(remove_duplicate=False):
        for attribute, parameter in owner.named_parameters(recurse=False, remove_duplicate=False):
            names[f"{path}.{attribute}" if path else attribute] = id(parameter)
            found.setdefault(id(parameter), []).append((owner, attribute))
    return {name: tuple(found[identity]) for name, identity in names.items()}


def count_parameters(module: nn.Module) -> int:
    """Values in the weights of ``module``, tied ones once; compressed ones count as what they stand for."""
    counts: dict[int, int] = {}
    for owner in module.modules():
        packed = {
            layout.parts(attribute)[0]: math.prod(shape)
            for attribute, layout, shape in getattr(type(owner), "_compressed", ())
        }
        for name, parameter in owner.named_parameters(recurse=False):
            counts[id(parameter)] = packed.get(name, parameter.numel())
    return sum(counts.values())
