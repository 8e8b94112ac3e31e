"""One attempt at pruning: choose channels and remove them, or, to compare with, only stop reading them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from . import selection
from .coupling import Coupled, Kept, analyse
from .criteria import Criterion


@dataclass(frozen=True)
class Settings:
    """How to prune: the share of channels to remove, how it is spread, and what is left of each layer."""

    ratio: float
    scope: Literal["uniform", "global"]
    criterion: Criterion
    round_to: int = 1


@dataclass(frozen=True)
class Attempt:
    """A copy of a module with ``gone[i]`` channels of ``groups[i]`` removed; ``kept`` are the groups left whole."""

    module: nn.Module
    groups: list[Coupled]
    gone: list[list[int]]
    kept: list[Kept]

    @property
    def anything(self) -> bool:
        """Whether a channel was removed at all."""
        return any(self.gone)


def attempt(
    module: nn.Module, inputs: tuple[Any, ...], settings: Settings, wanted: Callable[[Coupled], bool]
) -> Attempt:
    """Prune the ``wanted`` groups of a copy of ``module``."""
    pruned = copy.deepcopy(module)
    for ours, theirs in zip(pruned.parameters(), module.parameters(), strict=True):
        ours.grad = theirs.grad  # a deep copy leaves gradients behind, and some criteria want them
    structure = analyse(pruned, inputs)
    groups = [group for group in structure.groups if wanted(group)]
    if not groups:
        return Attempt(pruned, [], [], structure.kept)
    importance = [selection.scores(group, settings.criterion) for group in groups]
    select = selection.ranked if settings.scope == "global" else selection.uniform
    gone = select(groups, importance, settings.ratio, settings.round_to)
    for group, channels in zip(groups, gone, strict=True):
        if channels:
            group.remove(channels)
    pruned.zero_grad()
    return Attempt(pruned.eval(), groups, gone, structure.kept)


def without_reading(module: nn.Module, done: Attempt) -> nn.Module:
    """A copy of the unpruned ``module`` whose layers read zeros where the attempt removed channels."""
    masked = copy.deepcopy(module)
    for group, channels in zip(done.groups, done.gone, strict=True):
        for member in group.members:
            if member.makes:
                continue
            layer = masked.get_submodule(member.layer)
            assert isinstance(layer, (nn.Linear, nn.modules.conv._ConvNd))
            places = member.places[torch.isin(member.roots, torch.tensor(channels))]
            layer.weight.data.index_fill_(0 if getattr(layer, "transposed", False) else 1, places, 0.0)
    return masked


def outputs(module: nn.Module, inputs: tuple[Any, ...]) -> list[Tensor]:
    """The tensors that one forward call returns, whatever they are wrapped in."""
    with torch.no_grad():
        result = module.eval()(*inputs)
    return [leaf for leaf in torch.utils._pytree.tree_leaves(result) if isinstance(leaf, Tensor)]
