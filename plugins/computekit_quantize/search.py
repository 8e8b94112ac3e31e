"""The search for the smallest, or fastest, set of treatments that keeps the metric within a bound.

Each weight has a ladder of treatments, from what was asked for to none at all, each milder than the one before. Layers
are ranked by what they cost alone; `ladders` orders the steps by how much harm they take away for what they cost, as if
harms added up. They do not quite, so every set is judged by the real metric on the whole validation split: bisection
finds how many steps are needed, and then steps that turn out not to be needed are taken back, the dearest first. What
was asked for is judged first: where it meets the bound, there is nothing to search.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import computekit

from . import ladders, sensitivity
from .ladders import Choice, Option, Step
from .plan import Decision, Treatment
from .sensitivity import Cost, Sensitivity

if TYPE_CHECKING:
    from .clock import Deadline
    from .metric import Metric, Score
    from .timing import Seconds
    from .workbench import Workbench

KEPT = "left as it is by the search"

TAKEN_BACK = 32
"""Single steps that are tried to be taken back at most, without a time budget."""

_NOISE = 0.03
"""Share of a layer's time below which two treatments count as equally fast."""

_REFUSED = 1e30
"""Stands for the harm of a layer with which the metric has no value."""

_UNSEEN = 1e-9
"""Harm for each unit of relative squared error of a layer with which alone the metric loses nothing: together such
layers may lose much, so they have steps too, behind all others."""


@dataclass
class Found:
    """What a search came to: ``choice`` loses ``drop``. ``stopped`` is why it ended: "done", or what cut it short."""

    choice: dict[Decision, Treatment | None]
    drop: float
    bound: float
    stopped: str = "done"
    tried: list[dict[str, Any]] = field(default_factory=list)

    @property
    def met(self) -> bool:
        return self.drop <= self.bound


class Search:
    """One search; ``before`` is the original's score on the validation split."""

    def __init__(
        self,
        run: computekit.StepRun,
        metric: Metric,
        bench: Workbench,
        before: Score,
        bound: float,
        objective: str,
        deadline: Deadline,
    ) -> None:
        self.run, self.metric, self.bench, self.before = run, metric, bench, before
        self.bound, self.objective, self.deadline = bound, objective, deadline
        self.ranked: list[Sensitivity] | None = None
        self.times: dict[Decision, Seconds] = {}
        self.best = Found({d: d.treatment for d in bench.quantized}, math.inf, bound)

    def go(self, rank: bool = False) -> Found:
        """Search until it is done, the time is up, or somebody presses Ctrl-C; the best so far in any case.

        Layers are ranked where that is needed, or if ``rank`` asks for it.
        """
        try:
            self._go(rank)
        except _TimeIsUp:
            self.best.stopped = "time budget"
        except KeyboardInterrupt:
            self.best.stopped = "interrupted"
        return self.best

    def _go(self, rank: bool) -> None:
        everything = self.best.choice
        met = self._try(everything, 0)
        if rank or not met:
            self.ranked = sensitivity.measure(
                self.run, self.metric, self.bench, self.deadline, all_times=self.objective == "latency"
            )
        if met or self.ranked is None:
            return
        self.times = {found.decision: found.times for found in self.ranked if found.times}
        ranked = [*self.ranked, *self._estimated(self.ranked)]
        steps = ladders.steps((found.decision, self._options(found)) for found in ranked)
        applied = self._fewest(everything, steps)
        if applied is not None:
            self._take_back(everything, applied)

    def _fewest(self, start: Choice, steps: Sequence[Step]) -> list[Step] | None:
        """The fewest of ``steps``, in their order, that meet the bound; None if no number does.

        Those at the beginning that are free are taken all at once, unless they leave nothing quantized.
        """
        free = len(list(itertools.takewhile(lambda step: step.free, steps)))
        if not any(ladders.after(start, steps[:free]).values()):
            free = 0
        failed, count, passed, stride = max(0, free - 1), max(1, free), 0, 1
        while not passed and failed < len(steps):
            count = min(count, len(steps))
            if self._try(ladders.after(start, steps[:count]), count):
                passed = count
            else:
                failed, count, stride = count, count + stride, 2 * stride
        while passed - failed > 1:
            middle = (failed + passed) // 2
            if self._try(ladders.after(start, steps[:middle]), middle):
                passed = middle
            else:
                failed = middle
        return list(steps[:passed]) if passed else None

    def _take_back(self, start: Choice, applied: list[Step]) -> None:
        """Leave out single steps that the bound can do without, the dearest first."""
        dear = [step for step in applied if not step.free]
        candidates = sorted(dear, key=lambda step: step.before.cost - step.after.cost)
        for number, step in enumerate(candidates):
            if number == TAKEN_BACK and math.isinf(self.deadline.budget):
                break
            last = [s for s in applied if s.decision == step.decision][-1]
            if step is last:
                fewer = [s for s in applied if s is not step]
                if self._try(ladders.after(start, fewer), len(fewer)):
                    applied = fewer

    def _try(self, choice: Choice, steps: int) -> bool:
        """Judge a choice; keep it if it is the best so far, and tell whether it meets the bound."""
        if self.best.tried and self.deadline.left <= 0:
            raise _TimeIsUp
        chosen = {decision: treatment for decision, treatment in choice.items() if treatment is not None}
        if not chosen:
            return False
        with self.bench.treated(chosen) as module:
            cost = sensitivity.judge(self.metric, self.before, module, None, f"the model after {steps} steps")
        milder = sum(1 for decision, treatment in choice.items() if treatment not in (None, decision.treatment))
        self.best.tried.append(
            {
                "steps": steps,
                "left_out": len(choice) - len(chosen),
                "milder": milder,
                "bytes": sum(treated(d, t).bytes_after for d, t in choice.items()),
                **({"refused": cost.refused} if cost.refused else {"drop": cost.drop, "harm": cost.harm}),
            }
        )
        price = self._price(choice)
        met = cost.drop <= self.bound
        if (met and (not self.best.met or price <= self._price(self.best.choice))) or (
            not self.best.met and cost.drop < self.best.drop
        ):
            self.best.choice, self.best.drop = dict(choice), cost.drop
        return met

    def _price(self, choice: Choice) -> float:
        """Bytes, or measured seconds, of the weights with their treatments."""
        return math.fsum(self._cost(decision, treatment) for decision, treatment in choice.items())

    def _cost(self, decision: Decision, treatment: Treatment | None) -> float:
        """Of one weight: bytes, and among equals seconds; or the other way round where the objective is latency."""
        nbytes = treated(decision, treatment).bytes_after
        times = self.times.get(decision) or {}
        seconds, plain = times.get(treatment, 0.0), times.get(None, 0.0)
        if abs(seconds - plain) < _NOISE * plain:
            seconds = plain
        return nbytes + seconds if self.objective == "bytes" else seconds + nbytes * 1e-15

    def _estimated(self, ranked: Sequence[Sensitivity]) -> list[Sensitivity]:
        """What the weights that there was no time to rank may cost: in proportion to their relative squared error."""
        done = {found.decision for found in ranked}
        rest = [decision for decision in self.bench.quantized if decision not in done]
        if not rest:
            return []
        rates = [
            min(max(found.weight.harm, 0.0), _REFUSED) / max(self.bench.relative_error(found.decision), 1e-30)
            for found in ranked
        ]
        rate = max(statistics.median(rates), _UNSEEN)
        costs = [Cost(math.nan, rate * self.bench.relative_error(decision)) for decision in rest]
        return [Sensitivity(decision, cost, None, None) for decision, cost in zip(rest, costs, strict=True)]

    def _options(self, found: Sensitivity) -> list[Option]:
        """The rungs of a weight's ladder. The harm of a finer rounding follows from its squared error: near the
        minimum of a loss, harm grows with the square of what is changed."""
        decision = found.decision
        least = _UNSEEN * max(self.bench.relative_error(decision), 1e-30)
        harms = [min(max(cost.harm, least), _REFUSED) for cost in (found.weight, found.inputs) if cost is not None]
        options = []
        for treatment in (decision.treatment, *decision.treatment.milder):
            harm = (
                harms[0]
                * self.bench.error(decision, treatment)
                / max(self.bench.error(decision, decision.treatment), 1e-30)
            )
            if treatment.activations != "float":
                harm += sum(harms[1:])
            options.append(Option(treatment, self._cost(decision, treatment), harm))
        return [*options, Option(None, self._cost(decision, None), 0.0)]


def treated(decision: Decision, treatment: Treatment | None) -> Decision:
    """The decision to give a weight one of its options."""
    return decision.keep(KEPT) if treatment is None else decision.treat(treatment)


class _TimeIsUp(Exception):
    """The search must end."""
