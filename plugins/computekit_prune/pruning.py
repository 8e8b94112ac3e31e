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


class Pruner:
    """Prunes copies of one module; ``inputs`` are the positional arguments of one forward call.

    A layer whose channels cannot go, because the code fixes their number or mixes up their order, is left whole. Which
    ones these are is found out once.
    """

    def __init__(self, module: nn.Module, arch: models.ArchRef, inputs: tuple[Any, ...]) -> None:
        self.module, self.arch = module, arch
        self.inputs = tuple(map(_random_like, inputs))
        try:
            self.shapes = [output.shape for output in outputs(module, self.inputs)]
        except (RuntimeError, TypeError, IndexError) as error:
            sizes = ", ".join("x".join(map(str, value.shape)) for value in inputs)
            raise ComputekitError(f"{arch.name} does not take inputs of shape {sizes}: {_first_line(error)}") from error
        self._unfit: dict[str, Kept] | None = None

    def prune(self, settings: Settings) -> Pruned:
        """A pruned copy.

        Raises:
            NothingRemoved: no channel can go, or rounding keeps them all.
            ComputekitError: the module cannot be traced, or the pruned one does not run or cannot be rebuilt.
        """
        pruned = self._prune(settings)
        _check_rebuilt(pruned.module, self.arch, self.inputs)
        return pruned

    def prune_to_flops(self, settings: Settings, share: float) -> tuple[Pruned, float]:
        """Like `prune`, with the smallest ratio that leaves at most ``share`` of the forward FLOPs; returns it too.

        The ratio is searched in steps of 1/64, in which the FLOPs never rise.

        Raises:
            TargetOutOfReach: even the largest ratio leaves more.
        """
        whole = flops.count(self.module, self.inputs).forward

        def at(step: int) -> tuple[Pruned, float]:
            try:
                pruned = self._prune(replace(settings, ratio=step / _STEPS))
            except NothingRemoved:
                return Pruned(self.module), 1.0
            return pruned, flops.count(pruned.module, self.inputs).forward / whole

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
        _check_rebuilt(best.module, self.arch, self.inputs)
        return best, high / _STEPS

    def _prune(self, settings: Settings) -> Pruned:
        if self._unfit is None:
            self._unfit = self._find_unfit(replace(settings, ratio=0.5, round_to=1))
        unfit = self._unfit
        done = attempt(self.module, self.inputs, settings, lambda group: group.name not in unfit)
        kept = [*done.kept, *unfit.values()]
        if not done.groups:
            why = "; ".join(f"{entry.name} ({entry.reason})" for entry in kept)
            raise NothingRemoved(
                f"no layer may shrink: {why}" if why else "the model has no linear layers or convolutions"
            )
        if not done.anything:
            raise NothingRemoved(f"a ratio of {settings.ratio:g} rounded to multiples of {settings.round_to} keeps all")
        if not self._runs(done.module):
            raise ComputekitError(f"{self.arch.name} does not run with fewer channels in several layers at once")
        pairs = zip(done.groups, done.gone, strict=True)
        return Pruned(done.module, {g.name: (g.channels, g.channels - len(gone)) for g, gone in pairs}, kept)

    def _find_unfit(self, settings: Settings) -> dict[str, Kept]:
        """Groups that cannot shrink after all, and why.

        All are tried together first: where removing is exact, the outputs must be those of the whole model reading
        zeros, which a reshape that mixes channels up breaks; elsewhere the model must run. Only if that fails, one by
        one.
        """
        unfit: dict[str, Kept] = {}
        for exact in (True, False):
            together = attempt(self.module, self.inputs, settings, _where_exact(exact))
            if not together.anything or not self._why_unfit(together, exact):
                continue
            for one in together.groups:
                alone = attempt(self.module, self.inputs, settings, _named(one.name))
                reason = self._why_unfit(alone, exact)
                if reason:
                    unfit[one.name] = Kept(one.name, one.channels, reason)
        return unfit

    def _why_unfit(self, done: Attempt, exact: bool) -> str:
        """Why an attempt is no good, or an empty string."""
        if not self._runs(done.module):
            return "the code fixes its size"
        if exact:
            masked = without_reading(self.module, done)
            if not _close(outputs(done.module, self.inputs), outputs(masked, self.inputs)):
                return "the code mixes up the order of its channels"
        return ""

    def _runs(self, module: nn.Module) -> bool:
        """Whether ``module`` runs and gives outputs of the shapes of the whole one."""
        try:
            return [output.shape for output in outputs(module, self.inputs)] == self.shapes
        except (RuntimeError, ValueError, IndexError, AssertionError):
            return False


def _where_exact(exact: bool) -> Callable[[Coupled], bool]:
    return lambda group: group.exact is exact


def _named(name: str) -> Callable[[Coupled], bool]:
    return lambda group: group.name == name


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


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


def _check_rebuilt(module: nn.Module, arch: models.ArchRef, inputs: tuple[Any, ...]) -> None:
    """Build the architecture anew, shrink it, and see that it computes the same: a promise to who opens the file."""
    rebuilt = models.build(arch)
    state = module.state_dict()
    shrink(rebuilt, {name: tuple(tensor.shape) for name, tensor in state.items()})
    rebuilt.load_state_dict(state)
    pairs = zip(outputs(rebuilt, inputs), outputs(module, inputs), strict=True)
    if not all(torch.equal(one, other) for one, other in pairs):
        raise ComputekitError(f"{arch.name}, built anew from the pruned weights, computes something else")
