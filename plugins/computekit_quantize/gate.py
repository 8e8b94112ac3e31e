"""The gate of ``--backend auto``: which candidates compute what the original does, and how near each one is.

``--max-drop`` says how much of the metric of ``--data`` may be lost. Without it, the outputs must be near those of the
original: `metric.Cosine`, which is also ``--metric cosine``, on the data that was given or else on random samples.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import computekit
from computekit import ComputekitError

if TYPE_CHECKING:
    import torch
    from torch import nn

    from computekit import Data

    from .flow import Job
    from .metric import Cosine, Metric

COSINE = 0.997
"""Least mean cosine to the original's outputs, where no --max-drop says how much may be lost."""

_SAMPLES = 64
"""Samples of the validation split that the cosine is taken on, at most, rounded to whole batches."""


@dataclass(frozen=True)
class Verdict:
    """What a module loses: ``drop`` in the unit of the gate's metric, and ``cosine``, None where outputs have none."""

    drop: float
    cosine: float | None
    missed: str
    """Why it does not pass; empty if it does."""


class Gate:
    """Holds modules against the original, in batches of the size that is timed.

    ``original`` is on the run's device; ``inputs`` (N, ...) are what the race is run on.
    """

    def __init__(self, step: computekit.StepRun, job: Job, original: nn.Module, inputs: torch.Tensor) -> None:
        from . import metric

        goal, batch = job.goal, len(inputs)
        given = job.goal.data or job.calibration.data
        data = _alone(inputs) if given is None else _load(job, given)
        near = _part(data, max(1, _SAMPLES // batch) * batch)
        self.cosine: Cosine | None = None
        self.unlike = ""
        try:
            self.cosine = metric.Cosine(near, step.device, batch, original)
        except ComputekitError as error:
            self.unlike = str(error)
        self.metric: Metric
        if goal.data is not None and goal.max_drop is not None:
            asked = data if given == goal.data else _load(job, goal.data)
            self.metric = metric.make(goal.metric, goal.metric_direction, asked, step.device, batch, original)
            self.bound = goal.max_drop
        elif self.cosine is not None:
            self.metric, self.bound = self.cosine, 100 * (1 - COSINE)
        else:
            raise ComputekitError(f"--backend auto compares outputs, and {self.unlike}")
        self.before = self.metric.score(original, "validation")

    def judge(self, module: nn.Module, name: str) -> Verdict:
        """How near ``module`` is, which errors call ``name``.

        Raises:
            ComputekitError: it gives NaN, or cannot take the data.
        """
        after = self.metric.score(module, "validation", name=name)
        drop = self.metric.drop(self.before, after) + 0.0  # no minus zero
        cosine = None
        if self.cosine is not None:
            cosine = (after if self.metric is self.cosine else self.cosine.score(module, "validation", name=name)).value
        if drop <= self.bound:
            missed = ""
        elif self.metric is self.cosine:
            missed = f"cosine {cosine:.4f} to the original, below {COSINE}"
        else:
            missed = f"loses {drop:.3g} {self.metric.unit}, more than {self.bound:g}"
        return Verdict(drop, cosine, missed)

    @property
    def ranking(self) -> Metric:
        """What layers are ordered by: the cosine tells more of a single layer than a count of right answers does."""
        return self.cosine or self.metric

    def about(self) -> dict[str, Any]:
        """The gate as plain data, for the record."""
        return {"metric": self.metric.key, "unit": self.metric.unit, "bound": self.bound, "says": self.sentence()}

    def sentence(self) -> str:
        """What was compared and how much may be lost, for a person."""
        said = (
            []
            if self.metric is self.cosine
            else [f"drop: {self.metric.unit} on the validation split, at most {self.bound:g}"]
        )
        if self.cosine is not None:
            data = self.cosine.data
            least = f", at least {COSINE}" if self.metric is self.cosine else ""
            said.append(
                f"cosine: of {self.cosine.compared} to the original's, mean over {len(data.validation)} samples of "
                f"{data.name}{least}"
            )
        return "; ".join(said)


def _load(job: Job, name: str) -> Data:
    return computekit.load_data(name, model=job.model, window=job.goal.window)


def _alone(inputs: torch.Tensor) -> Data:
    """The inputs of the race as data."""
    from computekit.datasets import Data, Split

    split = Split(inputs.cpu(), inputs.new_zeros(len(inputs)).cpu())
    return Data("random samples", "inputs", split, split, split, 0, "random samples of the shape that the model takes")


def _part(data: Data, count: int) -> Data:
    """The data with ``count`` samples of its validation split, evenly spread."""
    from .metric import spread

    split = data.validation
    index = spread(len(split), count)
    return replace(data, validation=type(split)(split.inputs[index], split.targets[index]))
