"""Example inputs: what one forward call of a module takes, for tools that trace, time or run a model without data.

Importing this imports torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from .. import host, inputs
from ..datasets import Data
from ..errors import ComputekitError
from ..evaluation import floating_dtype
from ..inputs import Input
from .modules import ArchRef


def example_inputs(
    module: nn.Module,
    arch: ArchRef,
    *,
    data: Data | None = None,
    shapes: Sequence[Input] | None = None,
    batch: int = 1,
    seed: int = 0,
) -> tuple[Any, ...]:
    """Positional arguments of one forward call for ``batch`` samples.

    They are the first training samples of ``data``; else of ``shapes`` (see `inputs.Input`), random by ``seed``; else
    what the architecture gives as an example, with random numbers for its floats, which often are zeros, or what an
    exported program was exported with (as many samples, where it takes no other number). Floats have the type that the
    module computes in unless another was asked for.

    Raises:
        ComputekitError: nothing tells what goes into the module.
    """
    floats = floating_dtype(module)
    if data is not None:
        return (as_floats(data.train.inputs[:batch], floats),)
    if shapes is not None:
        generator, tokens = torch.Generator().manual_seed(seed), inputs.vocabulary(module)
        return tuple(shape.make(batch, floats, tokens, generator) for shape in shapes)
    known = host.current().architectures.get(arch.name)
    if known is None or known.example is None:
        exported = _exported_with(module, batch)
        if exported:
            return tuple(_random(value, value.dtype, seed) for value in exported)
        taken = inputs.taken_by(module)
        what = f"{arch.name} ({taken})" if taken else arch.name
        raise ComputekitError(f"nothing tells what goes into {what}; say it with --data or --input-shape")
    return tuple(_random(value, floats, seed) for value in known.example(batch, **arch.args))


def _exported_with(module: nn.Module, batch: int) -> list[torch.Tensor]:
    """Zeros of the shapes that an exported program takes by position; none where it takes others, or is no such."""
    form = getattr(module, "_in_spec", None)
    if not isinstance(module, torch.fx.GraphModule) or form is None:
        return []
    values = [node.meta.get("val") for node in module.graph.nodes if node.op == "placeholder"]
    by_position = form.num_children == 2 and form.child(0).num_children == len(values) == form.num_leaves
    if not by_position or not all(isinstance(value, torch.Tensor) for value in values):
        return []
    sizes = [[n if isinstance(n, int) else n.node.hint for n in value.shape] for value in values]
    for value, size in zip(values, sizes, strict=True):
        if size and not isinstance(value.shape[0], int):
            size[0] = batch
    known = all(n is not None for size in sizes for n in size)
    return [torch.zeros(s, dtype=v.dtype) for s, v in zip(sizes, values, strict=True)] if known else []


def as_floats(tensor: torch.Tensor, floats: torch.dtype) -> torch.Tensor:
    """``tensor`` in the type ``floats`` if it holds floating-point numbers, else as it is."""
    return tensor.to(floats) if tensor.is_floating_point() else tensor


def _random(value: Any, floats: torch.dtype, seed: int) -> Any:
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return value
    return torch.randn(value.shape, dtype=value.dtype, generator=torch.Generator().manual_seed(seed)).to(floats)
