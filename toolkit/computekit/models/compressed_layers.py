"""Modules that run on compressed weights: integers and scales stay in memory, floats exist only while they are used.

`compress_parameter` works on any module: it gives the module a subclass of its own class in which the parameter is
a property that dequantizes. The module keeps its ``forward``, and its state_dict has the names and tensors as which
`compressed` stores weights, so saving the module and loading the file again is a round trip. In memory, 4-bit values of
linear layers may lie in another order: see `int4_linear`.
"""

from __future__ import annotations

import functools
import math
import weakref
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
    shape = tuple(weight.values.shape)
    bases: list[Any] = [getattr(type(owner), "_uncompressed", type(owner)) for owner, _ in places]
    forward = _linear_forward(weight, activations)
    grid = None
    if any(base.forward is nn.Linear.forward for base in bases) and weight.bits == 4:
        from . import int4_linear

        if int4_linear.fits(weight):
            values, grid, forward = int4_linear.to_blocks(weight.values), int4_linear.grid(weight), _multiply_nibbles
    shared = nn.Parameter(values, requires_grad=False)
    for (owner, attribute), base in zip(places, bases, strict=True):
        before: tuple[_Entry, ...] = getattr(type(owner), "_compressed", ())
        entry = (attribute, weight.layout, shape)
        owner.__class__ = _compressed_class(base, (*before, entry), forward)
        main = weight.layout.parts(attribute)[0]
        if main != attribute:
            del owner._parameters[attribute]
        # not register_parameter: it refuses names that the class has, and the property bears the parameter's name
        owner._parameters[main] = shared
        for suffix, tensor in others:
            owner.register_buffer(f"{attribute}{suffix}", tensor)
        if grid is not None:
            owner.register_buffer(f"{attribute}_grid", grid, persistent=False)


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
    if any(layout.bits == 4 for _, layout, _ in attributes):
        members["_save_to_state_dict"] = _save_as_in_files
        members["_load_from_state_dict"] = _load_as_in_files
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
    return compressed.dequantize(_unpack(stored["_packed"], shape), scale, zero_point)


def _unpack(packed: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """4-bit values int8 of ``shape``, in whichever order they lie in memory."""
    if not _in_blocks(packed):
        return compressed.unpack(packed, shape)
    from . import int4_linear

    return int4_linear.from_blocks(packed, shape[0])


def _in_blocks(packed: torch.Tensor) -> bool:
    """Whether 4-bit values are in the order of `int4_linear` and not in that of files."""
    return packed.dtype.itemsize == 1


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
    values, scale, zero_point = stored[layout.parts("")[0]], stored["_scale"][rows], stored.get("_zero_point")
    if zero_point is not None:
        zero_point = (
            zero_point if layout.bits == 8 else compressed.unpack_zero_point(zero_point, stored["_scale"].shape)
        )
        zero_point = zero_point[rows]
    if layout.bits == 8:
        values = values[rows]
    elif _in_blocks(values):
        from . import int4_linear

        values = int4_linear.rows_from_blocks(values, rows)
    else:
        values = compressed.unpack(values[rows], (len(rows), module.embedding_dim))
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


def _multiply_nibbles(module: nn.Linear, input: torch.Tensor) -> torch.Tensor:
    """The layer on 4-bit values in blocks, on the CPU. input (..., in_features) -> (..., out_features)."""
    import torch
    from torch import nn

    from . import int4_linear

    gradient = input.requires_grad or (module.bias is not None and module.bias.requires_grad)
    if (
        torch.compiler.is_compiling()  # a compiler fuses the passes by itself
        or (torch.is_grad_enabled() and gradient)
        or input.device.type != "cpu"
        or input.dtype == torch.float64
    ):
        return nn.Linear.forward(module, input)
    layout: Layout = type(module)._compressed[0][1]  # type: ignore[attr-defined]
    stored = _stored(module, "weight", layout)
    packed, scale, zero_point = stored["_packed"], stored["_scale"], stored.get("_zero_point")
    grid = module._buffers["weight_grid"]
    assert grid is not None
    return int4_linear.linear(input, packed, scale, zero_point, grid, module.bias)


def _save_as_in_files(module: nn.Module, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
    """What `nn.Module` does for its own tensors, with 4-bit values in the order of files."""
    base: Any = type(module)._uncompressed  # type: ignore[attr-defined]
    base._save_to_state_dict(module, destination, prefix, keep_vars)
    for name, packed, shape in _blocks_of(module):
        known = getattr(packed, "_as_in_files", None)  # of a layer that it is tied to: they share it, as files do
        tensor = known() if known else None
        if tensor is None:
            tensor = compressed.pack(_unpack(packed, shape))
            packed._as_in_files = weakref.ref(tensor)  # type: ignore[attr-defined]
        destination[f"{prefix}{name}_packed"] = tensor


def _load_as_in_files(module: nn.Module, state_dict: dict[str, Any], prefix: str, *others: Any) -> None:
    """The inverse of `_save_as_in_files`."""
    from . import int4_linear

    base: Any = type(module)._uncompressed  # type: ignore[attr-defined]
    found = [(name, packed) for name, packed, _ in _blocks_of(module) if f"{prefix}{name}_packed" in state_dict]
    for name, packed in found:
        layout = Layout(4, f"{name}_zero_point" in module._buffers)
        weight = QuantizedWeight.restore(f"{prefix}{name}", state_dict.__getitem__, layout)
        state_dict[f"{prefix}{name}_packed"] = int4_linear.to_blocks(weight.values)
        module._buffers[f"{name}_grid"] = int4_linear.grid(weight)
        packed._as_in_files = None  # type: ignore[attr-defined]
    base._load_from_state_dict(module, state_dict, prefix, *others)


def _blocks_of(module: nn.Module) -> list[tuple[str, nn.Parameter, tuple[int, ...]]]:
    """The parameters of ``module`` that lie in blocks: name, values in blocks, shape."""
    entries: tuple[_Entry, ...] = type(module)._compressed  # type: ignore[attr-defined]
    packed = [(name, module._parameters.get(f"{name}_packed"), shape) for name, _, shape in entries]
    return [(name, values, shape) for name, values, shape in packed if values is not None and _in_blocks(values)]


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
