"""The accuracy gate: how much each weight's rounding costs alone, and which to leave out so that the total is bearable.

Weights are rounded in memory, in the model that runs, which gives the outputs that the written file would give. All
choices are made on the validation split. Rounding the inputs of layers (``--activations dynamic``) is not part of the
search, only of the final check on the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import computekit
from computekit import options

from .metric import Gauge

if TYPE_CHECKING:
    import torch

    from computekit.evaluation import Evaluation
    from computekit.models import ArchRef, ModelFile

    from .plan import Decision

GATED = "left out by the accuracy gate"
MISSED = 3
"""Exit status when no choice of weights keeps the metric within --max-drop; the nearest one is written all the same."""


@dataclass(frozen=True)
class Goal:
    """What the result is held against: the data, and the most that may be lost on it."""

    data: str | None
    batch_size: int
    sensitivity: bool
    max_drop: float | None

    def __post_init__(self) -> None:
        if self.data is None and (self.sensitivity or self.max_drop is not None):
            raise click.UsageError("--sensitivity and --max-drop need --data")


goal_options = options.gathered(
    "goal",
    Goal,
    options.data(help="Measure the metric on this data set's test split before and after."),
    options.batch_size(256),
    click.option("--sensitivity", is_flag=True, help="Measure what quantizing each weight alone costs. Needs --data."),
    click.option("--max-drop", type=options.Number(at_least=0),
                 help="Most that may be lost on the validation split: points of accuracy, or percent of perplexity. "
                      "The weights that cost most stay as they are; exit 3 if that is not enough. Needs --data."),
)  # fmt: skip
"""Options that become one argument ``goal``."""


def drop(before: Evaluation, after: Evaluation) -> float:
    """How much worse ``after`` is: accuracy in percentage points, perplexity in percent of the one before."""
    if before.metric == "accuracy":
        return 100 * (before.value - after.value)
    return 100 * (after.value / before.value - 1)


def unit(evaluation: Evaluation) -> str:
    """The unit of `drop`."""
    return "points of accuracy" if evaluation.metric == "accuracy" else f"% of {evaluation.metric}"


class Trial:
    """The model before and after: chooses what to quantize, checks the file that was written, and reports."""

    def __init__(self, run: computekit.StepRun, goal: Goal, source: ModelFile, gauge: Gauge) -> None:
        self.run, self.goal, self.source, self.gauge = run, goal, source, gauge
        self.search: Search | None = None
        self.lost = 0.0

    @classmethod
    def of(
        cls, run: computekit.StepRun, goal: Goal, source: ModelFile, arch: ArchRef | None, trust_pickle: bool
    ) -> Trial | None:
        """The trial that ``goal`` asks for, the original measured; None where there is no data to measure with."""
        if goal.data is None:
            return None
        gauge = Gauge(run, computekit.load_data(goal.data), arch, goal.batch_size, trust_pickle)
        gauge.measure(source.path)
        return cls(run, goal, source, gauge)

    def choose(self, decisions: list[Decision]) -> list[Decision]:
        """The decisions with which the model stays within the bound, as far as there is one."""
        if not self.goal.sensitivity and self.goal.max_drop is None:
            return decisions
        self.search = search = Search(self.run, self.gauge, self.source, decisions)
        ranked = search.sensitivities() if self.goal.sensitivity else None
        if ranked is not None:
            self.run.details["sensitivity"] = [
                {"name": s.decision.info.name, "drop": s.drop, "loss_increase": s.loss_increase} for s in ranked
            ]
            self.run.show(table(ranked, unit(search.before)))
        if self.goal.max_drop is None:
            return decisions
        chosen = search.within(self.goal.max_drop, ranked)
        self.run.details["gate"] = search.tried
        left_out = [d.info.name for d in chosen if d.kept == GATED]
        self.run.say(f"gate: {len(left_out)} weights left out {' '.join(left_out[:5])}".rstrip())
        return chosen

    def check(self, written: Path) -> None:
        """Measure the file that was written."""
        self.gauge.measure(written)
        if self.search is not None:
            self.lost = drop(self.search.before, self.gauge.evaluate(self.gauge.load(written), "validation"))

    def report(self) -> int:
        """Put the metric into the record; returns the exit status, `MISSED` if the bound was not met."""
        self.gauge.report()
        if self.search is None or self.goal.max_drop is None:
            return 0
        measured = unit(self.search.before)
        self.run.put("gate_drop", self.lost, method=f"{measured} lost on the validation split")
        if self.lost <= self.goal.max_drop:
            return 0
        missed = f"the drop is {self.lost:.3g} {measured}, not within {self.goal.max_drop:g}; the nearest was saved"
        self.run.note(missed)
        self.run.say(f"Gate missed: {missed}")
        return MISSED


@dataclass(frozen=True)
class Sensitivity:
    """What quantizing one weight alone does on the validation split."""

    decision: Decision
    drop: float
    loss_increase: float


class Search:
    """Tries sets of quantized weights on one model; ``tried`` keeps how many were left out and the drop, in order."""

    def __init__(self, run: computekit.StepRun, gauge: Gauge, source: ModelFile, decisions: Sequence[Decision]) -> None:
        self.run, self.gauge, self.decisions = run, gauge, list(decisions)
        self.module = gauge.load(source.path)
        self.weights = _parameters(self.module, source)
        self.before = gauge.evaluate(self.module, "validation")
        self.quantized = [decision for decision in decisions if decision.quantized]
        self.tried: list[dict[str, Any]] = []

    def sensitivities(self) -> list[Sensitivity]:
        """One entry per quantized weight, the most harmful first: by loss, which tells more than the metric."""
        found = []
        with self.run.progress(len(self.quantized), "sensitivity", "weight") as bar:
            for decision in self.quantized:
                after = self._with([decision])
                found.append(Sensitivity(decision, drop(self.before, after), after.loss - self.before.loss))
                bar.update()
        return sorted(found, key=lambda s: -s.loss_increase)

    def within(self, bound: float, ranked: Sequence[Sensitivity] | None = None) -> list[Decision]:
        """The decisions with as few weights left out as the bound allows, the most harmful ones first.

        The number is found by doubling it until the drop is at most ``bound``, then by bisection. Where no number that
        leaves something quantized is enough, the decisions come back with the smallest drop that was seen.
        """
        if self._drop_without([]) <= bound:
            return self.decisions
        harmful = [s.decision for s in (self.sensitivities() if ranked is None else ranked)]
        failed, passed, count = 0, 0, 1
        while count < len(harmful) and not passed:
            if self._drop_without(harmful[:count]) <= bound:
                passed = count
            else:
                failed, count = count, 2 * count
        while passed - failed > 1:
            middle = (failed + passed) // 2
            if self._drop_without(harmful[:middle]) <= bound:
                passed = middle
            else:
                failed = middle
        left_out = passed or min(self.tried, key=lambda t: (t["drop"], t["left_out"]))["left_out"]
        names = {decision.info.name for decision in harmful[:left_out]}
        return [d.keep(GATED) if d.info.name in names else d for d in self.decisions]

    def _drop_without(self, left_out: Sequence[Decision]) -> float:
        names = {decision.info.name for decision in left_out}
        after = self._with(decision for decision in self.quantized if decision.info.name not in names)
        change = drop(self.before, after)
        self.tried.append({"left_out": len(left_out), "drop": change, "loss": after.loss})
        return change

    def _with(self, decisions: Iterable[Decision]) -> Evaluation:
        """The metric on the validation split with exactly these weights rounded."""
        originals: list[tuple[torch.Tensor, torch.Tensor]] = []
        try:
            for decision in decisions:
                weight = self.weights[decision.info.name]
                originals.append((weight, weight.clone()))
                weight.copy_(decision.treatment.round(weight.cpu(), decision.info.name).dequantize())
            return self.gauge.evaluate(self.module, "validation")
        finally:
            for weight, original in originals:
                weight.copy_(original)


def table(sensitivities: Sequence[Sensitivity], measured: str) -> str:
    """The sensitivities for a person, the most harmful first."""
    from tabulate import tabulate

    rows = [
        [s.decision.info.name, s.decision.role, f"{s.drop:.3g}", f"{s.loss_increase:.3g}", s.decision.saved]
        for s in sensitivities
    ]
    return tabulate(
        rows, ["quantized alone", "role", f"drop, {measured}", "loss", "bytes saved"], disable_numparse=True
    )


def _parameters(module: torch.nn.Module, source: ModelFile) -> dict[str, torch.Tensor]:
    """The data of the module's parameters by the names that the file gives them."""
    from computekit.models.modules import match_names

    names, _ = match_names(module.state_dict(), source)
    by_key = dict(module.named_parameters(remove_duplicate=False))
    return {name: by_key[key].data for key, name in names.items() if key in by_key}
