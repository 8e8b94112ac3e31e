"""What a count gives: costs of a module or operator, and of the whole pass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace

from ..errors import ComputekitError


class CountFailed(ComputekitError):
    """The module could not be run on the example inputs."""


class TooManyOperators(CountFailed):
    """The module runs more operators than `count` was allowed: one after the other for each token, most often."""


@dataclass
class Cost:
    """What one module (with its children) or one operator costs over the whole pass.

    ``forward`` and ``backward`` are contraction FLOPs, ``*_other`` the rest. ``activation_bytes`` is what the forward
    pass writes, ``moved_bytes`` what it reads and writes if every operator is its own kernel. Attention and recurrent
    layers are one kernel each, however they are decomposed; ``forward_kernels`` and ``backward_kernels`` count so.
    """

    calls: int = 0
    forward_kernels: int = 0
    backward_kernels: int = 0
    forward: int = 0
    backward: int = 0
    forward_other: int = 0
    backward_other: int = 0
    activation_bytes: int = 0
    moved_bytes: int = 0

    def add(self, other: Cost) -> None:
        """Add the costs of ``other``, each to its own."""
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))


@dataclass(frozen=True)
class UnknownOp:
    """An operator without a formula: how often it ran and its share (0..1) of all elements that operators wrote."""

    name: str
    calls: int
    share: float


@dataclass
class FlopCount:
    """The cost of one forward (and backward) pass for the batch that was given."""

    forward: int = 0
    backward: int | None = None
    forward_other: int = 0
    backward_other: int | None = None
    causal_saving: int = 0
    by_module: dict[str, Cost] = field(default_factory=dict)
    by_op: dict[str, Cost] = field(default_factory=dict)
    unknown: tuple[UnknownOp, ...] = ()
    ran_on: str = "meta"
    activation_bytes: int = 0
    moved_bytes: int = 0
    idle: dict[str, int] = field(default_factory=dict)
    """Modules none of whose parameters an operator met in the forward pass, with the number of these parameters."""
    without_gradient: dict[str, int] = field(default_factory=dict)
    """Modules of which the forward pass is counted and which no gradient reaches, with their number of parameters."""
    outputs: Mapping[str, tuple[tuple[int, ...], ...]] = field(default_factory=dict)
    """Shapes of the tensors that the call gave, by the name of the field; "" where the output has no fields."""

    @property
    def macs(self) -> int:
        """Multiply-accumulates of the forward pass: half its FLOPs."""
        return self.forward // 2

    @property
    def forward_causal(self) -> int:
        """``forward`` with causal attention counted at its unmasked pairs only."""
        return self.forward - self.causal_saving

    @property
    def total(self) -> int:
        """Contraction FLOPs of forward and, where it was counted, backward."""
        return self.forward + (self.backward or 0)

    def joined(self, other: FlopCount) -> FlopCount:
        """This count and that of another call of the same module, as one."""
        both = replace(self)
        for name in ("forward", "forward_other", "causal_saving", "activation_bytes", "moved_bytes"):
            setattr(both, name, getattr(self, name) + getattr(other, name))
        for name in ("backward", "backward_other"):
            known = [value for value in (getattr(self, name), getattr(other, name)) if value is not None]
            setattr(both, name, sum(known) if known else None)
        for name in ("by_module", "by_op"):
            sums: dict[str, Cost] = {}
            for key, cost in (*getattr(self, name).items(), *getattr(other, name).items()):
                sums.setdefault(key, Cost()).add(cost)
            setattr(both, name, sums)
        both.unknown = self.unknown + other.unknown
        both.idle = {name: n for name, n in self.idle.items() if name in other.idle}
        both.without_gradient = self.without_gradient | other.without_gradient
        return both
