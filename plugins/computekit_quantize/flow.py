"""The steps from a request to a file and its record: open, plan, choose, write, measure, report."""

from __future__ import annotations

import tempfile
from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

import computekit
from computekit import ComputekitError, FileProblem, files
from computekit.models import ModelFile, open_model, program_files, roles
from computekit.models.formats import check_rewritable

from . import activations, backend, budget, candidates, device_types, fitting, huggingface, plan, qat, race
from .backend import AUTO
from .calibration import Calibration
from .candidates import Prepared
from .clock import Deadline
from .coverage import Coverage
from .goal import Goal
from .qat import Tuning
from .trial import MISSED, Trial

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
    observer: str | None
    tuning: Tuning
    race: race.Race
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
    if job.request.backend != AUTO:
        job.goal.check_searched()
        job.request.check_used()
        job.race.check_unused()
    elif job.goal.max_bytes is not None:
        raise click.UsageError("--max-bytes chooses for one backend: name it instead of auto")
    run.input(job.model)  # hashed from now on, while torch is imported
    source = _open(job)
    _check_arch(job)
    if job.dry_run:
        _show_plan(run, job, source)
        return 0
    check_rewritable(source, candidates.output(run, job, source))
    with tempfile.TemporaryDirectory() as scratch:
        weights = source
        if job.request.backend == AUTO:
            if job.tuning.epochs:
                raise click.UsageError("--qat-epochs tunes for one backend: name it instead of auto")
            prepared = race.run(run, job, source, deadline, Path(scratch))
        else:
            prepared, weights = _asked(run, job, source, Path(scratch))
        return _write(run, job, source, weights, prepared, deadline, Path(scratch))


def _check_arch(job: Job) -> None:
    """Raise ComputekitError if --arch is none for the file, where nothing else would run it."""
    runs = job.goal.data or job.calibration.data or job.request.backend != "torch"
    if job.arch is not None and (job.dry_run or not runs):
        computekit.load_module(job.model, job.arch, trust_pickle=job.trust_pickle)


def _show_plan(run: computekit.StepRun, job: Job, source: ModelFile) -> None:
    """What the options make of each tensor, as the file's header alone tells, and which options that leaves
    out."""
    run.writes_nothing()
    request, goal = job.request, job.goal
    if request.backend != AUTO:
        backend.get(request.backend)
    decisions = plan.make(source, request if request.scheme else replace(request, scheme="int8"))
    run.show(Coverage(decisions).tensor_table())
    _put_coverage(run, Coverage(decisions))
    given = {
        "--data": goal.data,
        "--calibration": job.calibration.data,
        "--backend": request.backend != "torch",
        "--max-drop": goal.max_drop is not None,
        "--max-bytes": goal.max_bytes,
        "--sensitivity": goal.sensitivity,
        "--time-budget": goal.time_budget,
        "--qat-epochs": job.tuning.epochs,
    }
    unheard = [name for name, value in given.items() if value]
    if unheard:
        run.say(f"a dry run shows what is asked for before anything is run or chosen: without {', '.join(unheard)}")


def _asked(run: computekit.StepRun, job: Job, source: ModelFile, scratch: Path) -> tuple[Prepared, ModelFile]:
    """What the options ask for, without a choice of backends; and the file with the weights, which may be changed."""
    chosen = backend.get(job.request.backend)
    chosen.check_present()
    candidate = candidates.make(chosen, job.request, bool(job.calibration.data or job.goal.data))
    candidates.check_place(run, job, source, chosen)
    job = replace(job, request=candidate.request)
    treatment = candidate.request.treatment
    static = treatment.activations == "static"
    if not treatment.scheme.needs_data and candidate.activations != "static" and job.goal.max_bytes is None:
        job.calibration.check_unused(treatment.scheme.name)
    if job.observer and not static:
        raise click.UsageError("--observer belongs to --activations static, computed by torch")
    decisions = plan.make(source, candidate.request)
    _check_coverage(job, Coverage(decisions))
    _tell_groups(run, job, decisions)
    if job.goal.max_bytes is not None:
        if chosen.export is not None or treatment.scheme.bits == 16:
            who = treatment.scheme.name if treatment.scheme.bits == 16 else f"--backend {chosen.name}"
            raise click.UsageError(f"--max-bytes gives layers milder treatments, and {who} has one for all")
        decisions = budget.fill(run, job, source, decisions)
    weights = source
    if job.tuning.epochs:
        if static:
            decisions = activations.calibrated(run, job, source, decisions)
        weights = qat.tuned(run, job, source, decisions, scratch / job.model.name)
    if treatment.scheme.needs_data:
        weights, decisions = fitting.fit(run, job, weights, decisions, scratch / f"folded-{job.model.name}")
    job = replace(job, model=weights.path)
    if static:
        decisions = activations.calibrated(run, job, weights, decisions)
    folder = scratch / "program"
    folder.mkdir()
    return candidates.prepare(run, job, source, candidate, decisions, folder), weights


def _write(
    run: computekit.StepRun,
    job: Job,
    source: ModelFile,
    weights: ModelFile,
    prepared: Prepared,
    deadline: Deadline,
    scratch: Path,
) -> int:
    """Choose what stays as it is, write the file and fill the record; returns the exit status."""
    request, asked = prepared.candidate.request, job.request.backend != AUTO
    trial = None
    output = candidates.output(run, job, source)
    _check_apart(output, prepared)
    if job.goal.sensitivity and (prepared.files or not asked):
        raise click.UsageError("--sensitivity looks into the layers of a module: --backend torch or compile")
    if job.goal.data is not None:
        trial = Trial(run, job, source, weights, deadline)
        if asked and prepared.files:
            prepared = trial.milder(prepared, scratch)
        elif asked:
            objective = job.goal.objective_for(request.treatment.activations)
            prepared = replace(prepared, decisions=trial.choose(prepared.decisions, objective))
    beside = bool(prepared.files) and not job.model.is_dir()
    with run.writing(output, program_files.belonging(output) if beside else None) as target:
        prepared.write(run, weights, target)
        size = _check_smaller(job, target)
        with nullcontext() if prepared.runtime is None else prepared.candidate.backend.answerable():
            if trial is not None:
                trial.check(target)
            elif asked and prepared.runtime is not None:
                _check_runs(run, job, prepared, target)
    decisions = prepared.decisions
    _put_sizes(run, job, source, decisions, size)
    if prepared.runtime is not None:
        run.put("backend", prepared.candidate.backend.name)
    if prepared.files:
        names = ", ".join(path.name for path in prepared.files)
        run.put("program_bytes", prepared.file_bytes, "B", method=f"bytes of {names}, which runs the model")
    if prepared.candidate.floats:
        run.details["floats"] = list(prepared.candidate.floats)
        run.note(f"the program computes in floats: {', '.join(prepared.candidate.floats)}")
    _put_coverage(run, Coverage(decisions))
    device_types.note(run, request.treatment)
    status = trial.status() if trial is not None else 0
    return MISSED if prepared.missed else status


def _check_runs(run: computekit.StepRun, job: Job, prepared: Prepared, target: Path) -> None:
    """Run the written file once, where its code and its inputs are known: a backend that breaks must not go unseen."""
    from . import samples

    try:
        original, arch = samples.load(job)
        inputs = samples.example(job, original, arch, 2)
    except ComputekitError as error:
        run.note(f"whether {prepared.candidate.backend.name} runs the file was not tried: {error}")
        return
    module, _ = samples.load(job, target)
    samples.call(module.to(run.device), [x.to(run.device) if hasattr(x, "to") else x for x in inputs])


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


def _check_apart(output: Path, prepared: Prepared) -> None:
    """FileProblem if a file of the program would take the place of the model file beside it."""
    if any(path.name == output.name for path in prepared.files):
        raise FileProblem(
            output,
            f"--backend {prepared.candidate.backend.name} writes a file of this name beside the model file",
            f"give another --output, such as {output.stem}.pt",
        )


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
    sizes = Counter(d.group_size for d in decisions if d.quantized and d.group_size not in (None, asked))
    for size, count in sizes.items():
        run.note(f"{count} weights have groups of {size}: {asked} does not divide the rows of all")


def _put_coverage(run: computekit.StepRun, report: Coverage) -> None:
    run.put("coverage", report.share, "1", method="bytes of the tensors that were quantized over bytes of all")
    run.details["coverage"] = report.rows()
    run.details["tensors"] = report.tensors()
    run.show(report.table())
