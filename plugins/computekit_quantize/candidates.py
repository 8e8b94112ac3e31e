"""Candidates: a way to store a model and a backend to run it, and how one becomes files."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import computekit
from computekit import ComputekitError

from . import activations, plan, writing
from .backend import Backend, Export

if TYPE_CHECKING:
    from computekit import ModelFile

    from .flow import Job
    from .plan import Decision, Request


@dataclass(frozen=True)
class Candidate:
    """``request`` says what is stored, ``activations`` how the layers of the ``backend`` compute."""

    backend: Backend
    request: Request
    activations: str

    @property
    def name(self) -> str:
        """``openvino int8 static, bf16 around``."""
        words = [self.backend.name, self.request.scheme]
        if self.activations != "float":
            words.append(self.activations)
        return " ".join(words) + (f", {self.request.rest} around" if self.request.rest else "")


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


def prepare(
    run: computekit.StepRun, job: Job, candidate: Candidate, decisions: list[Decision], folder: Path, stem: str
) -> Prepared:
    """Export the model of ``job`` where the backend does; programs go to ``folder``, called ``stem`` and an ending.

    Raises:
        ComputekitError: the model's code cannot be exported.
    """
    backend = candidate.backend
    if backend.export is None:
        return Prepared(candidate, decisions, None if backend.name == "torch" else {"name": backend.name}, [])
    from . import programs

    about = backend.export(_export(job, candidate), folder / stem)
    written = sorted(folder.iterdir())
    return Prepared(candidate, decisions, programs.describe(backend, about, written), written)


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
    return Export(module, example, calibration, scheme.bits, candidate.activations, half)
