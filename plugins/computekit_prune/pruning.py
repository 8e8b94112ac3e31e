"""Pruning a module: try, see that what is left computes what it should, and that it can be rebuilt."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from computekit import ComputekitError, flops, models
from computekit.models.shapes import shrink

from .coupling import Coupled, Kept
from .removal import Attempt, Settings, attempt, outputs, without_reading

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


@dataclass
class Pruned:
    """A pruned module; ``layers`` maps the first layer of each group to its channels before and after."""

    module: nn.Module
    layers: dict[str, tuple[int, int]] = field(default_factory=dict)
    kept: list[Kept] = field(default_factory=list)


def prune(module: nn.Module, arch: models.ArchRef, inputs: tuple[Any, ...], settings: Settings) -> Pruned:
    """A pruned copy of ``module``; ``inputs`` are the positional arguments of one forward call.

    A layer whose channels cannot go, because the code fixes their number or mixes up their order, is left whole.

    Raises:
        NothingRemoved: no channel can go, or rounding keeps them all.
        ComputekitError: the module cannot be traced, or the pruned one does not run or cannot be rebuilt.
    """
    inputs = tuple(map(_random_like, inputs))
    try:
        expected = outputs(module, inputs)
    except (RuntimeError, TypeError, IndexError) as error:
        sizes = ", ".join("x".join(map(str, value.shape)) for value in inputs)
        raise ComputekitError(f"{arch.name} does not take inputs of shape {sizes}: {_first_line(error)}") from error
    shapes = [output.shape for output in expected]
    unfit = _unfit(module, inputs, settings, shapes)
    done = attempt(module, inputs, settings, lambda group: group.name not in unfit)
    kept = [*done.kept, *(Kept(name, channels, reason) for name, (channels, reason) in unfit.items())]
    if not done.groups:
        why = "; ".join(f"{entry.name} ({entry.reason})" for entry in kept)
        raise NothingRemoved(f"no layer may shrink: {why}" if why else "the model has no linear layers or convolutions")
    if not done.anything:
        raise NothingRemoved(f"a ratio of {settings.ratio:g} rounded to multiples of {settings.round_to} keeps all")
    if not _runs(done.module, inputs, shapes):
        raise ComputekitError(f"{arch.name} does not run with fewer channels in several layers at once")
    _check_rebuilt(done.module, arch, inputs)
    layers = {
        group.name: (group.channels, group.channels - len(gone))
        for group, gone in zip(done.groups, done.gone, strict=True)
    }
    return Pruned(done.module, layers, kept)


def _unfit(
    module: nn.Module, inputs: tuple[Any, ...], settings: Settings, shapes: list[torch.Size]
) -> dict[str, tuple[int, str]]:
    """Groups that cannot shrink after all, with their channels and why.

    All are tried together first: where removing is exact, the outputs must be those of the whole model reading zeros,
    which a reshape that mixes channels up breaks; elsewhere the model must run. Only if that fails, one by one.
    """
    unfit: dict[str, tuple[int, str]] = {}
    for exact in (True, False):
        together = attempt(module, inputs, settings, _where_exact(exact))
        if not together.anything or not _why_unfit(module, together, inputs, shapes, exact):
            continue
        for one in together.groups:
            alone = attempt(module, inputs, settings, _named(one.name))
            reason = _why_unfit(module, alone, inputs, shapes, exact)
            if reason:
                unfit[one.name] = (one.channels, reason)
    return unfit


def _where_exact(exact: bool) -> Callable[[Coupled], bool]:
    return lambda group: group.exact is exact


def _named(name: str) -> Callable[[Coupled], bool]:
    return lambda group: group.name == name


def _why_unfit(module: nn.Module, done: Attempt, inputs: tuple[Any, ...], shapes: list[torch.Size], exact: bool) -> str:
    """Why an attempt is no good, or an empty string."""
    if not _runs(done.module, inputs, shapes):
        return "the code fixes its size"
    if exact and not _close(outputs(done.module, inputs), outputs(without_reading(module, done), inputs)):
        return "the code mixes up the order of its channels"
    return ""


def _runs(module: nn.Module, inputs: tuple[Any, ...], shapes: list[torch.Size]) -> bool:
    """Whether the module runs and gives outputs of these shapes."""
    try:
        return [output.shape for output in outputs(module, inputs)] == shapes
    except (RuntimeError, ValueError, IndexError, AssertionError):
        return False


def _close(found: list[Tensor], wanted: list[Tensor]) -> bool:
    """Equal but for rounding, relative to the largest output."""
    return all(
        float((a.double() - b.double()).abs().max()) <= 1e-3 * float(b.abs().max()) + 1e-6
        for a, b in zip(found, wanted, strict=True)
    )


def _random_like(value: Any) -> Any:
    """Noise in place of floating-point inputs: zeros would hide which channel is which."""
    if isinstance(value, Tensor) and value.is_floating_point():
        generator = torch.Generator().manual_seed(0)
        return torch.randn(value.shape, generator=generator).to(value)
    return value


def prune_to_flops(
    module: nn.Module, arch: models.ArchRef, inputs: tuple[Any, ...], settings: Settings, share: float
) -> tuple[Pruned, float]:
    """Like `prune`, with the smallest ratio that leaves at most ``share`` of the forward FLOPs; returns it too.

    The ratio is searched in steps of 1/64, in which the FLOPs never rise.

    Raises:
        TargetOutOfReach: even the largest ratio leaves more.
    """
    whole = flops.count(module, inputs).forward

    def at(step: int) -> tuple[Pruned, float]:
        try:
            pruned = prune(module, arch, inputs, replace(settings, ratio=step / _STEPS))
        except NothingRemoved:
            return Pruned(module), 1.0
        return pruned, flops.count(pruned.module, inputs).forward / whole

    low, high = 0, _STEPS - 1  # `low` leaves too much, `high` is enough
    best, left = at(high)
    if left > share:
        raise TargetOutOfReach(share, left)
    while high - low > 1:
        middle = (low + high) // 2
        pruned, left = at(middle)
        if left <= share:
            best, high = pruned, middle
        else:
            low = middle
    return best, high / _STEPS


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _check_rebuilt(module: nn.Module, arch: models.ArchRef, inputs: tuple[Any, ...]) -> None:
    """Build the architecture anew, shrink it, and see that it computes the same: a promise to who opens the file."""
    rebuilt = models.build(arch)
    state = module.state_dict()
    shrink(rebuilt, {name: tuple(tensor.shape) for name, tensor in state.items()})
    rebuilt.load_state_dict(state)
    pairs = zip(outputs(rebuilt, inputs), outputs(module, inputs), strict=True)
    if not all(torch.equal(one, other) for one, other in pairs):
        raise ComputekitError(f"{arch.name}, built anew from the pruned weights, computes something else")
