"""Ladders: the treatments that a weight may get, each milder than the one before, and the order in which to climb.

A step to a milder treatment takes harm away and costs bytes or seconds. The steps of all ladders in the order of harm
taken away for what it costs, as if harms added up, are the greedy solution of a multiple-choice knapsack (Sinha and
Zoltners 1979, doi:10.1287/opre.27.3.503).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from .plan import Decision, Treatment

_FREE = 1e-3
"""Share of a layer's bytes or time below which a step counts as free."""

Choice = Mapping[Decision, Treatment | None]


@dataclass(frozen=True)
class Option:
    """One rung of a ladder: a treatment (None: left as it is), what it costs and how much harm it does."""

    treatment: Treatment | None
    cost: float
    harm: float


@dataclass(frozen=True)
class Step:
    """From one rung of a weight's ladder to a milder one."""

    decision: Decision
    before: Option
    after: Option

    @property
    def free(self) -> bool:
        """Whether it costs next to nothing."""
        return self.after.cost - self.before.cost <= self._least

    @property
    def worth(self) -> float:
        """Harm taken away for each byte or second, and hardly limited where it costs none."""
        return (self.before.harm - self.after.harm) / max(self.after.cost - self.before.cost, self._least)

    @property
    def _least(self) -> float:
        return _FREE * max(self.before.cost, self.after.cost)


def steps(ladders: Iterable[tuple[Decision, Sequence[Option]]]) -> list[Step]:
    """The steps of all ladders, whose first rungs are where one stands: those first that are free from there, each kind
    by what they are worth."""
    free: list[Step] = []
    found: list[Step] = []
    for decision, (at, *others) in ladders:
        first = True
        while ahead := [option for option in others if option.harm < at.harm]:
            step = max((Step(decision, at, option) for option in ahead), key=lambda step: step.worth)
            (free if first and step.free else found).append(step)
            at, first = step.after, False
    return [step for kind in (free, found) for step in sorted(kind, key=lambda step: -step.worth)]


def after(start: Choice, taken: Iterable[Step]) -> dict[Decision, Treatment | None]:
    """The choice after some steps up the ladders."""
    return {**start, **{step.decision: step.after.treatment for step in taken}}
