"""What each layer costs alone, told apart: rounding its weight, rounding its inputs; and what that saves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import computekit
from computekit import ComputekitError

from . import timing

if TYPE_CHECKING:
    from torch import nn

    from .clock import Deadline
    from .metric import Metric, Score
    from .plan import Decision
    from .timing import Seconds
    from .workbench import Workbench

SAMPLES = {"classification": 256, "language-modeling": 16, "inputs": 64}
"""Samples of the validation split on which layers are ranked, at most; sets of layers are judged on the whole split."""

_TIMED = {"classification": 8, "language-modeling": 1, "inputs": 4}
"""Samples that go through the model when its layers are timed."""


@dataclass(frozen=True)
class Cost:
    """What a change does to the metric: ``drop`` in the metric's unit, ``harm`` in what layers are ranked by.

    Both are infinite where the metric has no value, which ``refused`` explains.
    """

    drop: float
    harm: float
    refused: str = ""


@dataclass(frozen=True)
class Sensitivity:
    """One weight of the plan: the cost of rounding it alone, and that of rounding what goes into its layers alone.

    ``inputs`` is None where its layers compute in floats, ``times`` where they never ran or were not timed.
    """

    decision: Decision
    weight: Cost
    inputs: Cost | None
    times: Seconds | None

    @property
    def harm(self) -> float:
        """Of both together, as if they added up."""
        return self.weight.harm + (self.inputs.harm if self.inputs else 0.0)

    def row(self) -> dict[str, Any]:
        """Plain data for the record; costs that are refused have a reason in place of numbers."""
        row: dict[str, Any] = {"name": self.decision.info.name, "bytes_saved": self.decision.saved}
        for key, cost in (("weight", self.weight), ("inputs", self.inputs)):
            if cost is not None:
                row[key] = {"refused": cost.refused} if cost.refused else {"drop": cost.drop, "harm": cost.harm}
        if self.times is not None:
            row["float_s"], row["treated_s"] = self.times[None], self.times[self.decision.treatment]
        return row


def judge(metric: Metric, before: Score, module: nn.Module, samples: int | None, name: str) -> Cost:
    """The cost of what was done to ``module`` since ``before`` was measured, on the same samples."""
    try:
        after = metric.score(module, "validation", samples, name)
    except ComputekitError as error:
        return Cost(math.inf, math.inf, str(error))
    return Cost(metric.drop(before, after), after.harm - before.harm)


def measure(
    run: computekit.StepRun, metric: Metric, bench: Workbench, deadline: Deadline, *, all_times: bool = False
) -> list[Sensitivity]:
    """One entry per quantized weight, the most harmful first; timed with its treatment, or with all milder ones too.

    Half of the time that is left is spent at most. Where a quarter of it is not enough for `SAMPLES`, fewer are taken;
    where even one sample per layer takes too long, the smallest weights have no entry.
    """
    until = deadline.left / 2
    task = metric.data.task
    samples, before = _affordable(metric, bench, deadline)
    ladders = {d: (d.treatment, *(d.treatment.milder if all_times else ())) for d in bench.quantized}
    times = timing.layer_times(bench, ladders, lambda module: metric.score(module, "validation", _TIMED[task]))
    order = sorted(bench.quantized, key=lambda decision: -decision.info.nbytes)
    found: list[Sensitivity] = []
    with run.progress(len(order), "sensitivity", "weight") as bar:
        for decision in order:
            if found and deadline.left < until:
                break
            name = f"the model with {decision.info.name} quantized"
            with bench.treated({decision: decision.treatment.storage}) as module:
                weight = judge(metric, before, module, samples, name)
            inputs = None
            if any(bench.in_integers(owner, decision.treatment) for owner, _ in bench.places[decision.info.name]):
                with bench.rounded_inputs(decision, decision.treatment) as module:
                    inputs = judge(metric, before, module, samples, name)
            found.append(Sensitivity(decision, weight, inputs, times.get(decision)))
            bar.update()
    run.details["ranked_on"] = {"samples": samples, "weights": len(found), "of": len(order)}
    return sorted(found, key=lambda s: -s.harm)


def _affordable(metric: Metric, bench: Workbench, deadline: Deadline) -> tuple[int, Score]:
    """On how many samples layers are ranked, and the original's score on them."""
    import time

    split = metric.data.validation
    samples = min(SAMPLES[metric.data.task], len(split))
    started = time.monotonic()
    before = metric.score(bench.module, "validation", samples)
    evaluations = sum(1 if decision.treatment.activations == "float" else 2 for decision in bench.quantized)
    expected = (time.monotonic() - started) * evaluations
    share = max(deadline.left, 0.0) / 4
    if expected <= share:
        return samples, before
    samples = max(1, int(samples * share / expected))
    return samples, metric.score(bench.module, "validation", samples)


def table(found: Sequence[Sensitivity], unit: str) -> str:
    """The sensitivities for a person, the most harmful first."""
    from tabulate import tabulate

    in_integers = any(s.inputs for s in found)
    rows = [
        [
            s.decision.info.name,
            s.decision.role,
            _shown(s.weight),
            *([_shown(s.inputs)] if in_integers else []),
            f"{s.harm:.3g}",
            s.decision.saved,
            _milliseconds(s),
        ]
        for s in found
    ]
    headers = ["quantized alone", "role", f"its weight: {unit}", *(["its inputs"] if in_integers else []), "loss",
               "bytes saved", "ms saved"]  # fmt: skip
    return tabulate(rows, headers, disable_numparse=True)


def _shown(cost: Cost | None) -> str:
    return "" if cost is None else "no value" if cost.refused else f"{cost.drop:.3g}"


def _milliseconds(found: Sensitivity) -> str:
    """What the treatment saves, and of how much."""
    if found.times is None:
        return ""
    whole, treated = found.times[None], found.times[found.decision.treatment]
    return f"{1e3 * (whole - treated):.3g} of {1e3 * whole:.3g}"
