"""Inside a measuring process: the system under test, and one trial of a scenario with it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from computekit import ComputekitError, devices

from . import compiling, scenarios
from .jobs import Job
from .loading import blaming, example_inputs, load, prepare
from .scenarios import Load
from .timing import Runner, warm_up

if TYPE_CHECKING:
    import torch

POOL = 256
"""Distinct samples that queries draw from."""


class SystemUnderTest:
    """A model that answers batches of sample indices; MLPerf's name for it. ``label`` is the model's in tables."""

    def __init__(self, job: Job) -> None:
        import torch

        self.device = prepare(job)
        subject = job.subjects[0]
        model = load(subject, job)
        if job.compile:
            compiling.allow(int(job.more["max_batch"]))
        self.module = compiling.compiled(model.module) if job.compile else model.module
        self.label = subject.label
        with blaming(self.label, "making inputs"):
            self.pool = example_inputs(model, job, POOL)
        with blaming(self.label, "a call with one sample"), torch.inference_mode():
            runner = Runner(self.label, lambda: self.run([0]))
            warm_up(runner, self.device, 0.2, float(job.more["duration_s"]), "give a longer --duration")

    def run(self, indices: Sequence[int]) -> None:
        """Answer the samples with these indices (any whole numbers) as one batch, and wait until it is done."""
        import torch

        chosen = torch.tensor([index % POOL for index in indices], device=self.device)
        with torch.inference_mode():
            self.module(*(self._of(argument, chosen) for argument in self.pool))
        devices.synchronize(self.device)

    @staticmethod
    def _of(argument: Any, chosen: torch.Tensor) -> Any:
        import torch

        return argument.index_select(0, chosen) if isinstance(argument, torch.Tensor) else argument


def run(job: Job) -> dict[str, Any]:
    """One trial of the scenario ``more["scenario"]``; its findings, by name."""
    more = dict(job.more)
    scenario, arguments = scenarios.find(more.pop("scenario")), more.pop("arguments")
    system = SystemUnderTest(job)
    with blaming(system.label, f"the scenario {scenario.name}"):
        findings = scenario.run(system, Load(**more, seed=job.seed), **arguments)
        return _checked(scenario, findings)


def _checked(scenario: scenarios.Scenario, findings: object) -> dict[str, Any]:
    """Findings as plain data; raises ComputekitError where a figure cannot be made of them."""
    if not isinstance(findings, Mapping):
        raise ComputekitError(f"the scenario {scenario.name} returned {type(findings).__name__}, not a dictionary")
    plain = {str(key): _plain(value) for key, value in findings.items()}
    for figure in scenario.figures:
        found, wanted = plain.get(figure.of), "one number" if figure.quantile is None else "a list of numbers"
        if not isinstance(found, (str, float if figure.quantile is None else list)):
            raise ComputekitError(
                f"the scenario {scenario.name} returned no {figure.of!r} that is {wanted}, for {figure.key}"
            )
    return plain


def _plain(value: Any) -> float | list[float] | str | None:
    """``value`` as JSON can hold it; None where it is nothing that a figure can be made of."""
    if isinstance(value, str):
        return value
    try:
        plain = [float(each) for each in value] if hasattr(value, "__iter__") else float(value)
    except (TypeError, ValueError):
        return None
    return plain if all(map(math.isfinite, plain if isinstance(plain, list) else [plain])) else None
