"""How important a channel is: criteria by name, and the hook that adds more."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import computekit

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Criterion:
    """An importance criterion. The channels with the lowest scores are removed.

    ``score(weights)`` takes all weights of one layer that go with its channels, as (channels, weights per channel),
    and returns (channels,). A channel's importance is the sum of its scores over all layers that are coupled to it:
    the layer that makes it and the layers that read it (Fang et al. 2023, "DepGraph", equation 4).

    With ``needs_gradients`` it is ``score(weights, gradients)``: the gradients of the training loss, of the same
    shape, from a pass over training data before anything is removed; such a criterion needs ``--data``.
    """

    name: str
    summary: str
    score: Callable[..., Tensor]
    needs_gradients: bool = False


@computekit.hookspec
def computekit_prune_criteria() -> Iterable[Criterion]:  # type: ignore[empty-body]
    """Add importance criteria, usable as ``computekit prune --criterion NAME``.

    Example::

        from computekit_prune import Criterion
        from computekit_prune.criteria import computekit_prune_criteria

        @implements(computekit_prune_criteria)
        def criteria() -> list[Criterion]:
            return [Criterion("largest", "largest weight", lambda weights: weights.abs().amax(1))]
    """


def find(name: str) -> Criterion:
    """The criterion called ``name``; raises UnknownName with the nearest ones."""
    from computekit import host

    known = host.current().named("computekit_prune_criteria", Criterion, "criterion")
    if name not in known:
        raise computekit.UnknownName("criterion", name, known)
    return known[name]


def _l1(weights: Tensor) -> Tensor:
    return weights.abs().sum(1)


def _l2(weights: Tensor) -> Tensor:
    return weights.square().sum(1)


def _random(weights: Tensor) -> Tensor:
    import torch

    return torch.rand(len(weights))


def _taylor(weights: Tensor, gradients: Tensor) -> Tensor:
    return (weights * gradients).sum(1).square()


BUILTIN = (
    Criterion("l2", "sum of squared weights (Li et al. 2017 with the L2 norm)", _l2),
    Criterion("l1", "sum of absolute weights (Li et al. 2017)", _l1),
    Criterion(
        "taylor", "squared first-order change of the loss (Molchanov et al. 2019)", _taylor, needs_gradients=True
    ),
    Criterion("random", "chance, seeded by --seed: the control that a criterion has to beat", _random),
)
