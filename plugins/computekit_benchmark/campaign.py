"""The asking side of a comparison: starts trials until every pair is resolved or the time is spent."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from . import jobs, verdicts
from .jobs import Job, JobFailed
from .verdicts import Comparison

MAX_FAILURES = 3
LEAST_LONGEST_S = 0.5
TRIAL_BUDGETS = 5
"""No trial of models that are fast enough takes longer than so many time budgets."""

INTERRUPTION = "interrupted"


@dataclass
class Campaign:
    """Trials of ``job``'s subjects, the first of which is the one that the others are compared with.

    ``batches[0]`` is the batch size that the verdicts are about. ``trials`` holds what `timing.trial` returned;
    ``failures`` what went wrong with the trials that do not count; ``ended`` says why it ended before its time.
    """

    job: Job
    batches: list[int]
    budget_s: float
    margin: float = verdicts.MARGIN
    clock: str = "wall"
    trials: list[dict[str, Any]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    ended: str | None = None

    @property
    def seconds(self) -> float:
        """Measuring time per model and batch size in one trial: the five needed trials take about half the budget."""
        share = 0.5 * self.budget_s / (verdicts.MIN_TRIALS * len(self.job.subjects) * len(self.batches))
        return min(0.5, max(0.05, share))

    @property
    def longest_s(self) -> list[float]:
        """The longest call at each batch size for which there is time.

        A trial makes at least four calls of each model. Verdicts are about the first batch size, which is therefore
        worth several times the budget; a further one must fit into its share of it.
        """
        models = len(self.job.subjects)
        share = self.budget_s / (verdicts.MIN_TRIALS * models * len(self.batches))
        return [self.budget_s / models, *[max(LEAST_LONGEST_S, share)] * (len(self.batches) - 1)]

    def run(self, after_trial: Callable[[Campaign], None] = lambda _campaign: None) -> None:
        """Run the five needed trials, then more while a pair is unresolved and the budget lasts.

        Ctrl-C, and `MAX_FAILURES` lost trials in a row (a device that vanished), end it; what was measured stays.

        Raises:
            JobFailed: nothing was measured, and a model cannot be or all trials died.
        """
        deadline = time.monotonic() + self.budget_s
        lost = 0
        try:
            while len(self.trials) < verdicts.MIN_TRIALS or (not self.resolved and time.monotonic() < deadline):
                try:
                    self.trials.append(jobs.run(self._trial(), TRIAL_BUDGETS * self.budget_s))
                    lost = 0
                except JobFailed as failure:
                    lost += 1
                    self.failures.append(str(failure))
                    if not self.trials and (failure.fatal or lost == MAX_FAILURES):
                        raise
                    if lost == MAX_FAILURES:
                        self.ended = f"{lost} trials in a row were lost"
                        break
                after_trial(self)
        except KeyboardInterrupt:
            if not self.trials:
                raise
            self.ended = INTERRUPTION

    def _trial(self) -> Job:
        number = len(self.trials) + len(self.failures)
        more = {"batches": self.batches, "seconds": self.seconds, "clock": self.clock, "longest_s": self.longest_s}
        return self.job.but(task="trial", seed=self.job.seed * 1_000_003 + number, more=more)

    @property
    def resolved(self) -> bool:
        """Whether every pair at the first batch size has a verdict."""
        return all(c.verdict != "unresolved" for c in self.comparisons(self.batches[0]))

    def comparisons(self, batch: int) -> list[Comparison]:
        """Each model against the first at ``batch``; empty where that batch size could not be measured."""
        measured = [trial["batches"][str(batch)] for trial in self.trials if str(batch) in trial["batches"]]
        if not measured:
            return []
        labels = [subject.label for subject in self.job.subjects]
        return [
            verdicts.compare(
                labels[0],
                labels[i],
                [verdicts.trial_value(models[0]["visits"], models[i]["visits"]) for models in measured],
                margin=self.margin,
                clock=self.clock,
                batch_size=batch,
            )
            for i in range(1, len(labels))
        ]

    def calls(self, index: int, batch: int) -> list[list[float]]:
        """Seconds of every timed call of model ``index`` at ``batch``, one list per trial."""
        return [
            [second for visit in trial["batches"][str(batch)][index]["visits"] for second in visit]
            for trial in self.trials
            if str(batch) in trial["batches"]
        ]

    def first_calls(self, index: int) -> list[float]:
        """Seconds of the first call of model ``index`` in each trial."""
        return [trial["batches"][str(self.batches[0])][index]["first_call_s"] for trial in self.trials]
