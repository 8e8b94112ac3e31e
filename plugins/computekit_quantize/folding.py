"""Channel scales: divide what a layer gives by a scale per channel, and multiply the layers that read it by the same.

The model computes what it did, and the weights or the activations become easier to round. Where that is possible is
found by trying it: a scale is put between two layers while they run, and only where the outputs stay as they were is it
folded into the weights. Nothing is assumed about names or about the code in between, and nothing is added to the file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from torch import Tensor

    from .stages import Stage

_NEAR = 3  # layers before a consumer that are tried as its producer
_TOLERANCE = 1e-4  # of the largest output: powers of two are folded exactly, but sums are taken in another order


@dataclass(frozen=True)
class Fold:
    """``producer``, whose output channels are the input channels of all ``consumers``, and of nothing else."""

    producer: str
    consumers: tuple[str, ...]


def find(stage: Stage, names: Sequence[str], shared: Set[int]) -> list[Fold]:
    """The places in a stage where a scale can be folded, for consumers among its linear layers ``names``.

    Producers are norms, whose output several layers read, and linear layers, with whatever is in between. Modules with
    ``shared`` parameters, given by their `id`, take no part.
    """
    linear = [n for n in names if type(stage.part.get_submodule(n)) is nn.Linear]
    order, inputs, outputs = _trace(stage, linear)
    free = [n for n in order if not shared & {id(p) for p in stage.part.get_submodule(n).parameters()}]
    expected = stage.outputs(1)[0]
    folds: list[Fold] = []
    open_consumers = [n for n in linear if n in inputs and n in free]
    for norm in [n for n in free if _is_norm(stage.part.get_submodule(n))]:
        readers = tuple(n for n in open_consumers if inputs[n] is outputs[norm])
        if readers and _holds(stage, Fold(norm, readers), expected):
            folds.append(Fold(norm, readers))
            open_consumers = [n for n in open_consumers if n not in readers]
    for consumer in open_consumers:
        width = inputs[consumer].shape[-1]
        before = [
            n for n in order[: order.index(consumer)] if n in free and _width(stage.part.get_submodule(n)) == width
        ]
        for producer in before[: -_NEAR - 1 : -1]:
            fold = Fold(producer, (consumer,))
            if _holds(stage, fold, expected):
                folds.append(fold)
                break
    return folds


@torch.no_grad()
def apply(part: nn.Module, fold: Fold, scale: Tensor) -> bool:
    """Divide the producer's output by ``scale`` (channels,) and multiply the consumers' weights by it, in place.

    False, and nothing is changed, where the producer does not multiply by its weight as it is (some norms add one).
    """
    producer = part.get_submodule(fold.producer)
    assert isinstance(producer.weight, nn.Parameter)
    scale = scale.to(producer.weight.device)
    probe = torch.linspace(-1, 1, scale.numel() * 3).reshape(3, -1).to(producer.weight)
    before = producer(probe) if _is_norm(producer) else None
    parameters = [p for p in (producer.weight, getattr(producer, "bias", None)) if isinstance(p, nn.Parameter)]
    originals = [p.clone() for p in parameters]
    for parameter in parameters:
        parameter.mul_((1 / scale).reshape(-1, *[1] * (parameter.ndim - 1)))
    if before is not None and not torch.allclose(producer(probe) * scale, before, rtol=1e-3, atol=1e-5):
        for parameter, original in zip(parameters, originals, strict=True):
            parameter.copy_(original)
        return False
    for name in fold.consumers:
        weight = part.get_submodule(name).weight
        assert isinstance(weight, nn.Parameter)
        weight.mul_(scale)
    return True


def _is_norm(module: nn.Module) -> bool:
    """Whether a module may be a norm with an affine: its own parameters are vectors of one length."""
    own = dict(module.named_parameters(recurse=False))
    shapes = {tuple(parameter.shape) for parameter in own.values()}
    return set(own) in ({"weight"}, {"weight", "bias"}) and len(shapes) == 1 == len(next(iter(shapes)))


def _width(module: nn.Module) -> int:
    """Output channels of a linear layer, 0 for anything else."""
    return module.out_features if type(module) is nn.Linear else 0


def shared_parameters(module: nn.Module) -> set[int]:
    """The `id` of each parameter that ``module`` has in several places."""
    seen: set[int] = set()
    twice: set[int] = set()
    for _, parameter in module.named_parameters(remove_duplicate=False):
        (twice if id(parameter) in seen else seen).add(id(parameter))
    return twice


def _trace(stage: Stage, linear: Sequence[str]) -> tuple[list[str], dict[str, Tensor], dict[str, Tensor]]:
    """Linear layers and norms in the order in which they run, the inputs of ``linear`` and the outputs of norms.

    A module that runs twice is left out: one scale cannot serve both.
    """
    order: list[str] = []
    inputs: dict[str, Tensor] = {}
    outputs: dict[str, Tensor] = {}
    with ExitStack() as stack:
        for name, module in stage.part.named_modules():
            if _width(module) or _is_norm(module):

                def after(
                    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any, name: str = name
                ) -> None:
                    order.append(name)
                    outputs[name] = output
                    inputs[name] = args[0] if args else next(iter(kwargs.values()))

                stack.callback(module.register_forward_hook(after, with_kwargs=True).remove)
        stage.outputs(1)
    once = [name for name in order if order.count(name) == 1]
    return once, {name: inputs[name] for name in linear if name in once}, outputs


def _holds(stage: Stage, fold: Fold, expected: Any) -> bool:
    """Whether a scale of the producer's channels, undone before the consumers, leaves the outputs as ``expected``.

    And whether it changes them where it is not undone: otherwise the outputs tell nothing.
    """
    producer = stage.part.get_submodule(fold.producer)
    weight = producer.weight
    assert isinstance(weight, nn.Parameter)
    scale = 2.0 ** (torch.arange(weight.shape[0], device=weight.device) % 3 - 1)
    with _scaled(stage.part, fold, scale, undone=True):
        same = _alike(stage.outputs(1)[0], expected)
    if not same:
        return False
    with _scaled(stage.part, fold, scale, undone=False):
        return not _alike(stage.outputs(1)[0], expected)


@contextmanager
def _scaled(part: nn.Module, fold: Fold, scale: Tensor, undone: bool) -> Iterator[None]:
    """The producer's output divided by ``scale`` and, if ``undone``, the consumers' input multiplied by it."""
    with ExitStack() as stack:
        producer = part.get_submodule(fold.producer)
        stack.callback(producer.register_forward_hook(lambda module, args, output: output / scale).remove)
        for name in fold.consumers if undone else ():
            consumer = part.get_submodule(name)
            stack.callback(consumer.register_forward_pre_hook(lambda module, args: (args[0] * scale,)).remove)
        yield


def _alike(output: Any, expected: Any) -> bool:
    """Whether every tensor in the output of a module is the expected one, up to the order of sums."""
    from torch.utils import _pytree

    pairs = zip(_tensors(output, _pytree), _tensors(expected, _pytree), strict=True)
    return all(float((a - b).abs().max()) <= _TOLERANCE * float(b.abs().max()) for a, b in pairs)


def _tensors(output: Any, tree: Any) -> list[Tensor]:
    return [leaf.float() for leaf in tree.tree_leaves(output) if isinstance(leaf, torch.Tensor) and leaf.numel()]
