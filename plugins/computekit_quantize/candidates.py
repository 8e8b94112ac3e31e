"""Candidates: a way to store a model and a backend to run it, and how one becomes files."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import computekit
from computekit import ComputekitError, files

from . import activations, plan, writing
from .backend import AUTO, Backend, Export

if TYPE_CHECKING:
    from torch import nn

    from computekit import ModelFile

    from .flow import Job
    from .plan import Decision, Request


@dataclass(frozen=True)
class Candidate:
    """``request`` says what is stored, ``activations`` how the layers of the ``backend`` compute.

    ``floats`` are the paths of layers that its program does not quantize.
    """

    backend: Backend
    request: Request
    activations: str
    floats: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """``openvino int8 static, bf16 around``."""
        words = [self.backend.name, self.request.scheme]
        if self.activations != "float":
            words.append(self.activations)
        around = f", {self.request.rest} around" if self.request.rest else ""
        left_out = f", {len(self.floats)} {'layer' if len(self.floats) == 1 else 'layers'} not" if self.floats else ""
        return " ".join(words) + around + left_out


@dataclass(frozen=True)
class Prepared:
    """What there is to write: the fate of each tensor, and the program of the backend (files in a scratch folder).

    ``missed`` is why it does not compute what the original does, though nothing that was tried is nearer.
    """

    candidate: Candidate
    decisions: list[Decision]
    runtime: dict[str, Any] | None
    files: list[Path]
    missed: str = ""

    @property
    def file_bytes(self) -> int:
        """Bytes of the program beside the model file."""
        return sum(path.stat().st_size for path in self.files)

    def write(self, run: computekit.StepRun, source: ModelFile, target: Path) -> None:
        """Write the model file, and what runs it beside it."""
        writing.write(run, source, target, self.decisions, self.candidate.request.treatment, self.runtime)
        if self.files:
            from . import programs

            programs.place(self.files, target)


def make(backend: Backend, request: Request, calibrated: bool) -> Candidate:
    """The candidate that a request names; raises ComputekitError if the backend cannot do that."""
    if backend.export is None:
        return Candidate(backend, request, request.treatment.activations)
    if request.rest and 16 not in backend.bits:
        raise ComputekitError(f"--backend {backend.name} computes in float32 around its layers: leave --rest away")
    # the program computes as it says; the file beside it keeps weights that anybody can read
    stored = replace(request, activations="float")
    return Candidate(backend, stored, backend.way(request.activations, stored.treatment.scheme.bits, calibrated))


def decide(run: computekit.StepRun, job: Job, source: ModelFile, candidate: Candidate) -> list[Decision]:
    """What happens to which tensor of ``source``, calibrated where the layers of the module need it.

    Raises:
        ComputekitError: the model or the data do not suit the candidate.
    """
    if candidate.request.treatment.scheme.needs_data:
        raise ComputekitError(f"--backend auto times schemes as they are; {candidate.request.scheme} needs one backend")
    decisions = plan.make(source, candidate.request)
    if candidate.request.treatment.activations == "static":
        decisions = activations.calibrated(run, replace(job, request=candidate.request), source, decisions)
    return decisions


def output(run: computekit.StepRun, job: Job, source: ModelFile) -> Path:
    """Where the model file goes."""
    return run.output(source.beside(job.request.scheme or AUTO))


def check_place(run: computekit.StepRun, job: Job, source: ModelFile, backend: Backend) -> None:
    """FileProblem if the program of a backend would take the place of a file that is not the old output's."""
    if backend.endings and not job.model.is_dir():
        from computekit.models import program_files

        target = output(run, job, source)
        names = [f"{target.stem}{ending}" for ending in backend.endings]
        owned = program_files.belonging(target)
        files.check_companions(target, [name for name in names if name != target.name], owned)


def prepare(
    run: computekit.StepRun, job: Job, source: ModelFile, candidate: Candidate, decisions: list[Decision], folder: Path
) -> Prepared:
    """Export the model of ``job`` where the backend does. The files of a program go to ``folder``, called as the output
    file, or ``model`` if that is a folder, and an ending.

    Raises:
        ComputekitError: the model's code cannot be exported.
    """
    backend = candidate.backend
    if backend.export is None:
        return Prepared(candidate, decisions, None if backend.name == "torch" else {"name": backend.name}, [])
    from . import programs

    stem = "model" if job.model.is_dir() else output(run, job, source).stem
    about = backend.export(_export(job, candidate), folder / stem)
    written = sorted(folder.iterdir())
    return Prepared(candidate, decisions, programs.describe(backend, about, written), written)


def loaded(run: computekit.StepRun, job: Job, source: ModelFile, prepared: Prepared, target: Path) -> nn.Module:
    """Write the files to ``target``, called like the model of the job, and load them as a user would."""
    from . import samples

    prepared.write(run, source, target)
    module, _ = samples.load(job, target)
    return module.to(run.device)


def _export(job: Job, candidate: Candidate) -> Export:
    from . import samples

    module, arch, _ = computekit.load_module(job.model, job.arch, trust_pickle=job.trust_pickle)
    module.float()
    calibration = None
    if candidate.activations == "static":
        calibration = samples.of_calibration(job)
    example = samples.example(job, module, arch, 2)
    scheme = candidate.request.treatment.scheme
    half = scheme.name if scheme.bits == 16 else candidate.request.rest
    return Export(module, example, calibration, scheme.bits, candidate.activations, half, candidate.floats)
