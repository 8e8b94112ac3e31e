"""The model before and after: what is chosen so that it stays within the bound, and what the written file loses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import computekit

from . import candidates, metric, milder, sensitivity
from .search import Found, Search, treated
from .workbench import Workbench

if TYPE_CHECKING:
    from torch import nn

    from computekit.models import ModelFile

    from .candidates import Prepared
    from .clock import Deadline
    from .flow import Job
    from .metric import Score
    from .plan import Decision
    from .sensitivity import Sensitivity

MISSED = 3
"""Exit status when no choice keeps the metric within --max-drop; the nearest one is written all the same."""


class Trial:
    """Holds the result against the original on one data set. All choices are made on the validation split.

    ``source`` is the original, ``weights`` the float model that is quantized: the same, or what training made of it.
    """

    def __init__(
        self,
        run: computekit.StepRun,
        job: Job,
        source: ModelFile,
        weights: ModelFile,
        deadline: Deadline,
    ) -> None:
        goal = job.goal
        assert goal.data is not None
        self.run, self.job, self.goal, self.deadline = run, job, goal, deadline
        self.source, self.weights = source, weights
        self._started = deadline.elapsed
        self.module = self._load(source.path)
        data = computekit.load_data(goal.data, model=source.path, window=goal.window)
        self.metric = metric.make(goal.metric, goal.metric_direction, data, run.device, goal.batch_size, self.module)
        self.before = self.metric.score(self.module, "test")
        self.original = self.module
        if weights is not source:
            self.module = self._load(weights.path)
        self.validation: Score | None = None
        self.found: Found | None = None
        self.lost = 0.0

    def choose(self, decisions: list[Decision], objective: str) -> list[Decision]:
        """The decisions with which the model stays within the bound, as far as there is one."""
        if not self.goal.sensitivity and self.goal.max_drop is None:
            return decisions
        self.validation = self.metric.score(self.original, "validation")
        self.deadline.begin_search(self.deadline.elapsed - self._started)
        bench = Workbench(self.module, self.weights, decisions)
        if self.goal.max_drop is None:
            ranked: list[Sensitivity] | None = sensitivity.measure(self.run, self.metric, bench, self.deadline)
        else:
            search = Search(self.run, self.metric, bench, self.validation, self.goal.max_drop, objective, self.deadline)
            self.found = search.go(rank=self.goal.sensitivity)
            ranked = search.ranked
        if ranked is not None:
            self.run.details["sensitivity"] = [entry.row() for entry in ranked]
            if self.goal.sensitivity:
                self.run.show(sensitivity.table(ranked, self.metric.unit))
        if self.found is None:
            return decisions
        self._tell(objective)
        choice = self.found.choice
        return [treated(decision, choice[decision]) if decision in choice else decision for decision in decisions]

    def milder(self, prepared: Prepared, scratch: Path) -> Prepared:
        """The program; where it loses more than the bound, the one with the fewest layers in floats that does not.

        ``scratch`` is a folder for programs and files.
        """
        bound, backend = self.goal.max_drop, prepared.candidate.backend
        if bound is None:
            return prepared
        validation = self.validation = self.metric.score(self.original, "validation")
        job = replace(self.job, model=self.weights.path)

        def folder(name: str) -> Path:
            path = scratch / f"{name}-{len(list(scratch.iterdir()))}"
            path.mkdir()
            return path

        def lost(made: Prepared) -> float:
            target = folder("file") / self.weights.path.name
            with backend.answerable():
                module = candidates.loaded(self.run, job, self.weights, made, target)
                return self.metric.drop(validation, self.metric.score(module, "validation", name="the result"))

        def attempt(floats: tuple[str, ...]) -> tuple[Prepared, float]:
            candidate = replace(prepared.candidate, floats=floats)
            self.run.say(f"preparing {candidate.name}")
            made = candidates.prepare(self.run, job, self.source, candidate, prepared.decisions, folder("program"))
            return made, lost(made)

        drop = lost(prepared)
        if drop <= bound or not backend.partial:
            return prepared
        self.run.say(f"{prepared.candidate.name} loses {drop:.3g} {self.metric.unit}; leaving layers in floats")
        self.deadline.begin_search(self.deadline.elapsed - self._started)
        layers = milder.ranked(self.run, prepared.candidate, self.metric, self.module, self.deadline)
        found, tried = milder.fewest(layers, drop, bound, self.deadline, attempt)
        self.run.details["milder"] = [{"name": prepared.candidate.name, "tried": tried}]
        return found or prepared

    def check(self, written: Path) -> None:
        """Measure the file that was written, and put what it loses into the record."""
        module = self._load(written)
        after = self.metric.score(module, "test", name="the result")
        self._report(after)
        if self.goal.max_drop is not None:
            before = self.validation or self.metric.score(self.original, "validation")
            drop = self.metric.drop_interval(before, self.metric.score(module, "validation", name="the result"))
            self.lost = drop.value
            self.run.put("gate_drop", drop.value, **drop.about)

    def status(self) -> int:
        """The exit status: `MISSED` if the written file does not meet the bound."""
        bound = self.goal.max_drop
        if bound is None or self.lost <= bound:
            return 0
        missed = f"the drop is {self.lost:.3g} {self.metric.unit}, not within {bound:g}; the nearest was saved"
        self.run.note(missed)
        self.run.say(f"Gate missed: {missed}")
        return MISSED

    def _load(self, path: Path) -> nn.Module:
        from . import samples

        module, _ = samples.load(self.job, path)
        return module.to(self.run.device)

    def _tell(self, objective: str) -> None:
        """The search, for the record and for the person."""
        assert self.found is not None
        found, unit = self.found, self.metric.unit
        changed = {d.info.name: t for d, t in found.choice.items() if t != d.treatment}
        self.run.details["search"] = {
            "objective": objective,
            "metric": self.metric.key,
            "unit": unit,
            "bound": found.bound,
            "stopped": found.stopped,
            "tried": found.tried,
        }
        names = ", ".join(f"{name} ({t.word if t else 'as it was'})" for name, t in list(changed.items())[:5])
        more = f" and {len(changed) - 5} more" if len(changed) > 5 else ""
        self.run.say(
            f"search: {found.drop:.3g} of {found.bound:g} {unit} used, {len(found.tried)} choices tried; "
            + (f"milder: {names}{more}" if changed else "everything as asked for")
        )
        if found.stopped != "done":
            self.run.note(f"the search was cut short ({found.stopped}): the best so far was saved, a better may exist")

    def _report(self, after: Score) -> None:
        """The metric and how far it is from the original's."""
        key, data = self.metric.key, self.metric.data.name
        self.run.put(key, after.value, **after.estimate.about)
        difference = self.metric.difference(self.before, after)
        self.run.put(f"{key}_difference", difference.value, unit="1", **difference.about)
        before: Mapping[str, Any] = {"value": self.before.value, **self.before.estimate.about}
        self.run.details["before"] = {"data": data, "metric": key, **before}
        self.run.show(f"{key} on the test split of {data}: {self.before.value:.6g} before, {after.value:.6g} after")
