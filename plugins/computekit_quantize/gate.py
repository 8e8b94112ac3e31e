"""The accuracy gate: how much each weight's rounding costs alone, and which to leave out so that the total is bearable.

Weights are rounded in memory, in the model that runs, which gives the outputs that the written file would give. All
choices are made on the validation split. Rounding the inputs of layers (``--activations dynamic``) is not part of the
search, only of the final check on the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import computekit

if TYPE_CHECKING:
    import torch

    from computekit.evaluation import Evaluation
    from computekit.models import ModelFile

    from .metric import Gauge
    from .plan import Decision

GATED = "left out by the accuracy gate"


def drop(before: Evaluation, after: Evaluation) -> float:
    """How much worse ``after`` is: accuracy in percentage points, perplexity in percent of the one before."""
    if before.metric == "accuracy":
        return 100 * (before.value - after.value)
    return 100 * (after.value / before.value - 1)


def unit(evaluation: Evaluation) -> str:
    """The unit of `drop`."""
    return "points of accuracy" if evaluation.metric == "accuracy" else f"% of {evaluation.metric}"


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
