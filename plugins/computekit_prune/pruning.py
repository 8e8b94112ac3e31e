"""Pruning a module: analyse, rank, remove, and check that what is left runs and can be rebuilt."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import nn

from computekit import ComputekitError, flops, models
from computekit.models.shapes import shrink

from . import selection
from .coupling import Kept, analyse
from .criteria import Criterion

_STEPS = 64
"""Ratios that `prune_to_flops` tries lie this many to one apart."""


class NothingRemoved(ComputekitError):
    """Pruning left every channel where it was."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"nothing was removed: {self.reason}; the model is as small as before"


class TargetOutOfReach(ComputekitError):
    """No ratio brings the FLOPs down to the target."""

    def __init__(self, share: float, lowest: float) -> None:
        super().__init__(share, lowest)
        self.share, self.lowest = share, lowest

    def __str__(self) -> str:
        return (
            f"pruning cannot bring the FLOPs down to {self.share:.3g} of the model's; "
            f"removing nearly all channels that may go leaves {self.lowest:.3g}"
        )


@dataclass(frozen=True)
class Settings:
    """How to prune: the share of channels to remove, how it is spread, and what is left of each layer."""

    ratio: float
    scope: Literal["uniform", "global"]
    criterion: Criterion
    round_to: int = 1


@dataclass
class Pruned:
    """A pruned module; ``layers`` maps the first layer of each group to its channels before and after."""

    module: nn.Module
    layers: dict[str, tuple[int, int]] = field(default_factory=dict)
    kept: list[Kept] = field(default_factory=list)


def prune(module: nn.Module, arch: models.ArchRef, inputs: tuple[Any, ...], settings: Settings) -> Pruned:
    """A pruned copy of ``module``; ``inputs`` are the positional arguments of one forward call.

    Attention whose code fixes the size of its heads is left whole.

    Raises:
        NothingRemoved: no channel can go, or rounding keeps them all.
        ComputekitError: the module cannot be traced, or the pruned one does not run or cannot be rebuilt.
    """
    try:
        expected = _output_shape(module, inputs)
    except (RuntimeError, TypeError, IndexError) as error:
        shapes = ", ".join("x".join(map(str, value.shape)) for value in inputs)
        raise ComputekitError(f"{arch.name} does not take inputs of shape {shapes}: {_first_line(error)}") from error
    try:
        pruned = _remove(module, inputs, settings, keep_attention=False)
        shape = _output_shape(pruned.module, inputs)
    except RuntimeError:
        pruned = _remove(module, inputs, settings, keep_attention=True)
        try:
            shape = _output_shape(pruned.module, inputs)
        except RuntimeError as error:
            raise ComputekitError(f"{arch.name} does not run with fewer channels: {_first_line(error)}") from error
    if shape != expected:
        raise ComputekitError(f"pruning changed the output of {arch.name} from {expected} to {shape}")
    _check_rebuilt(pruned.module, arch, inputs)
    return pruned


def prune_to_flops(
    module: nn.Module, arch: models.ArchRef, inputs: tuple[Any, ...], settings: Settings, share: float
) -> tuple[Pruned, float]:
    """Like `prune`, with the smallest ratio that leaves at most ``share`` of the forward FLOPs; returns it too.

    The ratio is searched in steps of 1/64, in which the FLOPs never rise.

    Raises:
        TargetOutOfReach: even the largest ratio leaves more.
    """
    whole = flops.count(module, inputs).forward

    def attempt(step: int) -> tuple[Pruned, float]:
        try:
            pruned = prune(module, arch, inputs, replace(settings, ratio=step / _STEPS))
        except NothingRemoved:
            return Pruned(module), 1.0
        return pruned, flops.count(pruned.module, inputs).forward / whole

    low, high = 0, _STEPS - 1  # `low` leaves too much, `high` is enough
    best, left = attempt(high)
    if left > share:
        raise TargetOutOfReach(share, left)
    while high - low > 1:
        middle = (low + high) // 2
        pruned, left = attempt(middle)
        if left <= share:
            best, high = pruned, middle
        else:
            low = middle
    return best, high / _STEPS


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _remove(module: nn.Module, inputs: tuple[Any, ...], settings: Settings, keep_attention: bool) -> Pruned:
    pruned = copy.deepcopy(module)
    structure = analyse(pruned, inputs, keep_attention)
    if not structure.groups:
        why = "; ".join(f"{kept.name} ({kept.reason})" for kept in structure.kept)
        raise NothingRemoved(f"no layer may shrink: {why}" if why else "the model has no linear layers or convolutions")
    importance = [selection.scores(group, settings.criterion) for group in structure.groups]
    select = selection.ranked if settings.scope == "global" else selection.uniform
    plan = select(structure.groups, importance, settings.ratio, settings.round_to)
    if not any(plan):
        raise NothingRemoved(f"a ratio of {settings.ratio:g} rounded to multiples of {settings.round_to} keeps all")
    layers = {}
    for group, gone in zip(structure.groups, plan, strict=True):
        layers[group.name] = (group.channels, group.channels - len(gone))
        if gone:
            group.remove(gone)
    return Pruned(pruned.eval(), layers, structure.kept)


def _output_shape(module: nn.Module, inputs: tuple[Any, ...]) -> list[tuple[int, ...]]:
    with torch.no_grad():
        output = module.eval()(*inputs)
    return [tuple(leaf.shape) for leaf in torch.utils._pytree.tree_leaves(output) if isinstance(leaf, torch.Tensor)]


def _check_rebuilt(module: nn.Module, arch: models.ArchRef, inputs: tuple[Any, ...]) -> None:
    """Build the architecture anew, shrink it, and see that it computes the same: a promise to who opens the file."""
    rebuilt = models.build(arch)
    state = module.state_dict()
    shrink(rebuilt, {name: tuple(tensor.shape) for name, tensor in state.items()})
    rebuilt.load_state_dict(state)
    with torch.no_grad():
        same = torch.utils._pytree.tree_map(torch.equal, rebuilt.eval()(*inputs), module(*inputs))
    if not all(torch.utils._pytree.tree_leaves(same)):
        raise ComputekitError(f"{arch.name}, built anew from the pruned weights, computes something else")
