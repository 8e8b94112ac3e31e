"""The steps from a request to a file and its record: open, plan, choose, write, measure, report."""

from __future__ import annotations

import tempfile
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import computekit
from computekit import ComputekitError, FileProblem, files
from computekit.models import ModelFile, open_model, roles

from . import activations, fitting, huggingface, plan, qat, writing
from .calibration import Calibration
from .clock import Deadline
from .coverage import Coverage
from .goal import Goal
from .qat import Tuning
from .trial import Trial

if TYPE_CHECKING:
    from computekit.models import ArchRef

MIN_COVERAGE = 0.10
"""Share of a model's bytes below which quantizing it is refused as a no-op."""
NOTABLE_REST = 0.2
"""Share of the input's bytes besides the weights above which a note says so."""


@dataclass(frozen=True)
class Job:
    """All that one run was asked for; the options of a topic are one field."""

    model: Path
    request: plan.Request
    goal: Goal
    calibration: Calibration
    observer: str
    tuning: Tuning
    arch: ArchRef | None
    trust_pickle: bool
    allow_noop: bool
    dry_run: bool


class NoGain(ComputekitError):
    """Quantizing would not make the file meaningfully smaller."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(path, why)
        self.path, self.why = path, why

    def __str__(self) -> str:
        return f"{self.path}: {self.why}; nothing was written (--allow-noop writes it all the same)"


def carry_out(run: computekit.StepRun, job: Job) -> int:
    """Do the job and fill the record of ``run``; returns the exit status.

    Raises:
        ComputekitError: the file cannot be read, cannot be quantized or would not become smaller, or cannot take the
            data; nothing is written then.
    """
    deadline = Deadline(job.goal.time_budget)
    treatment = job.request.treatment
    static = treatment.activations == "static"
    if not treatment.scheme.needs_data and not static:
        job.calibration.check_unused(treatment.scheme.name)
    source = _open(job)
    run.input(job.model)
    decisions = plan.make(source, job.request)
    if job.dry_run:
        run.show(Coverage(decisions).tensor_table())
        _put_coverage(run, Coverage(decisions))
        return 0
    _check_coverage(job, Coverage(decisions))
    _tell_groups(run, job, decisions)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        weights = source
        if job.tuning.epochs:
            if static:
                decisions = activations.calibrated(run, job, source, decisions)
            weights = qat.tuned(run, job, source, decisions, folder / job.model.name)
        if treatment.scheme.needs_data:
            weights, decisions = fitting.fit(run, job, weights, decisions, folder / f"folded-{job.model.name}")
        if static:
            decisions = activations.calibrated(run, replace(job, model=weights.path), weights, decisions)
        trial = None
        if job.goal.data is not None:
            trial = Trial(run, job.goal, source, weights, job.arch, job.trust_pickle, deadline)
            decisions = trial.choose(decisions, job.goal.objective_for(treatment.activations))
        target = stack.enter_context(run.writing(source.beside(job.request.scheme)))
        writing.write(run, weights, target, decisions, treatment)
        size = _check_smaller(job, target)
        if trial is not None:
            trial.check(target)
    _put_sizes(run, job, source, decisions, size)
    _put_coverage(run, Coverage(decisions))
    return trial.status() if trial is not None else 0


def _open(job: Job) -> ModelFile:
    """The model file, unless its weights are quantized already."""
    from computekit.models import compressed

    source = open_model(job.model, trust_pickle=job.trust_pickle)
    present = compressed.find(source.tensors)
    if present:
        example = f"{len(present)} weights, e.g. {next(iter(present))}"
        raise FileProblem(job.model, f"is quantized already ({example})", "computekit dequantize gives back floats")
    huggingface.check_plain(source)
    return source


def _check_coverage(job: Job, report: Coverage) -> None:
    if report.share < MIN_COVERAGE and not job.allow_noop:
        raise NoGain(job.model, f"only {report.share:.1%} of the bytes can be quantized ({report.reasons()})")


def _check_smaller(job: Job, target: Path) -> int:
    """Bytes of the result; raises NoGain if they are not fewer than the input's."""
    before, after = files.size_bytes(job.model), files.size_bytes(target)
    if after >= before and not job.allow_noop:
        raise NoGain(job.model, f"the result would take {after} bytes, the input takes {before}")
    return after


def _put_sizes(run: computekit.StepRun, job: Job, source: ModelFile, decisions: list[plan.Decision], size: int) -> None:
    before = files.size_bytes(job.model)
    run.put("parameters", roles.count_parameters(source), method="values in float tensors, running statistics apart")
    run.put("file_bytes", size, "B")
    run.put("compression_ratio", before / size, "1", method="bytes of the input over bytes of the output")
    other = before - sum(decision.info.nbytes for decision in decisions)
    if other > before * NOTABLE_REST:
        run.note(f"{other / before:.0%} of the input is not weights (optimizer state, for example) and was copied")
    for part in roles.copies(source):
        run.note(f"{part.rstrip('.')} is the model once more: quantized as well, its parameters are counted once")


def _tell_groups(run: computekit.StepRun, job: Job, decisions: list[plan.Decision]) -> None:
    """Say where groups are smaller than was asked for, because their size does not divide the rows."""
    asked = job.request.treatment.group
    sizes = Counter(
        (d.group_size, d.info.numel // d.info.shape[0])
        for d in decisions
        if d.quantized and d.treatment.group is not None and d.group_size not in (None, asked)
    )
    for (size, columns), count in sorted(sizes.items()):
        run.note(f"{count} weights have groups of {size}: {asked} does not divide their rows of {columns}")


def _put_coverage(run: computekit.StepRun, report: Coverage) -> None:
    run.put("coverage", report.share, "1", method="bytes of the tensors that were quantized over bytes of all")
    run.details["coverage"] = report.rows()
    run.details["tensors"] = report.tensors()
    run.show(report.table())
