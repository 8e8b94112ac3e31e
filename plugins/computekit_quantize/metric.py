"""The metric before and after: the same samples through both models, compared sample by sample."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import computekit

if TYPE_CHECKING:
    from torch import nn

    from computekit.evaluation import Evaluation
    from computekit.models import ArchRef


@dataclass
class Gauge:
    """Evaluates model files on the test split of one data set; ``seen`` holds the results in order."""

    run: computekit.StepRun
    data: computekit.Data
    arch: ArchRef | None
    batch_size: int
    trust_pickle: bool
    seen: list[Evaluation] = field(default_factory=list)

    def load(self, path: Path) -> nn.Module:
        """The model of the file ``path`` on the run's device; raises ComputekitError if the file has no code."""
        module, _, _ = computekit.load_module(path, self.arch, trust_pickle=self.trust_pickle)
        return module.to(self.run.device)

    def evaluate(self, module: nn.Module, split: Literal["validation", "test"]) -> Evaluation:
        """The metric of ``module`` on a split; raises ComputekitError if it cannot take the data."""
        from computekit.evaluation import evaluate

        samples = self.data.test if split == "test" else self.data.validation
        return evaluate(module, samples, self.data.task, self.run.device, self.batch_size)

    def measure(self, path: Path) -> None:
        """Evaluate the model file ``path`` on the test split."""
        self.seen.append(self.evaluate(self.load(path), "test"))

    def report(self) -> None:
        """Put the last metric, and how far it is from the first, into the record."""
        before, after = self.seen[0], self.seen[-1]
        self.run.put(after.metric, **after.quantity())
        self.run.put(f"{after.metric}_difference", unit="1", **_difference(before, after))
        self.run.details["before"] = {"data": self.data.name, "metric": before.metric, **before.quantity()}
        self.run.show(
            f"{after.metric} on the test split of {self.data.name}: {before.value:.6g} before, {after.value:.6g} after"
        )


def _difference(before: Evaluation, after: Evaluation) -> dict[str, Any]:
    """Value, interval and method of the change of the metric."""
    from computekit import statistics

    if after.metric == "accuracy":
        estimate = statistics.paired_difference(before.outcomes.tolist(), after.outcomes.tolist()).difference
        return {"value": estimate.value, **estimate.about}
    return {"value": after.value - before.value, "method": f"{after.metric} after minus before, on the same windows"}
