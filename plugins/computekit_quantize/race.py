"""``--backend auto``: all candidates on the same inputs in turns, and the fastest that computes what the original does.

See `gate` for what that means and `rounds` for how they are timed. A program that would be the fastest, and loses too
much, is made again with some layers in floats (`milder`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import computekit
from computekit import ComputekitError, files, options

from . import backend, candidates, milder
from .candidates import Candidate, Prepared
from .plan import Request
from .rounds import MIN_ROUNDS, Rounds, Timed, fastest

if TYPE_CHECKING:
    from computekit import ModelFile
    from computekit.inputs import Input

    from .clock import Deadline
    from .flow import Job
    from .gate import Gate

_WAYS: tuple[tuple[str, str, str | None], ...] = (
    ("bf16", "float", None),
    ("fp16", "float", None),
    ("int8", "float", None),
    ("int8", "dynamic", None),
    ("int8", "dynamic", "bf16"),
    ("int8", "static", None),
    ("int8", "static", "bf16"),
)
"""Scheme, activations and what computes around them, of the candidates that every backend is asked for."""

_BATCH = 32
_SECONDS = 3.0

_HOPELESS = 4
"""How many times as long as the original's a call may take, where there is no time for `MIN_ROUNDS` of it."""

_WORTH = 1.05
"""How much faster than the best a program must be that is made again with layers in floats, which costs time."""


@dataclass(frozen=True)
class Race:
    """How candidates are timed: samples in one call, seconds for each, and the shape of a sample where no data tells.

    ``without`` names backends that do not take part.
    """

    batch: int | None
    asked_seconds: float | None
    without: tuple[str, ...]
    inputs: tuple[Input, ...] | None

    def check_unused(self) -> None:
        """click.UsageError for options of a race that is not run."""
        given = {"--race-batch": self.batch, "--race-seconds": self.asked_seconds, "--race-without": self.without}
        for name, value in given.items():
            if value:
                raise click.UsageError(f"{name} is for --backend auto, which times the candidates")

    @property
    def seconds(self) -> float:
        """Seconds for each candidate: what was asked for, else the default."""
        return self.asked_seconds or _SECONDS


race_options = options.gathered(
    "race",
    lambda race_batch, race_seconds, race_without, input_shape: Race(
        race_batch, race_seconds, race_without, input_shape
    ),
    click.option("--race-batch", type=click.IntRange(min=1),
                 help="Samples in the call that --backend auto times.  [default: 32, 1 if the model generates]"),
    click.option("--race-seconds", type=options.Number(above=0),
                 help="Time for each candidate of --backend auto, its preparation apart.  [default: 3.0]"),
    click.option("--race-without", multiple=True, metavar="BACKEND",
                 help="Leave a backend out of --backend auto, e.g. compile, which takes a minute per candidate."),
    options.input_shape,
    section="Backends",
)  # fmt: skip
"""Options that become one argument ``race``."""


@dataclass
class Runner(Timed):
    """One model in the race; ``lost`` says why it is not the one that is kept."""

    prepared: Prepared | None = None
    bytes: int = 0
    program_bytes: int = 0
    cosine: float | None = None
    drop: float | None = None
    lost: str = ""

    def row(self) -> dict[str, Any]:
        """The runner as plain data, for the record."""
        return {
            "name": self.name,
            "speedup": self.speedup.value if self.speedup else None,
            "interval": self.speedup.interval if self.speedup else None,
            "file_bytes": self.bytes or None,
            "program_bytes": self.program_bytes,
            "cosine": self.cosine,
            "drop": self.drop,
            "lost": self.lost,
            "samples_s": list(self.seconds.values()),
        }


def run(step: computekit.StepRun, job: Job, source: ModelFile, deadline: Deadline, folder: Path) -> Prepared:
    """Make, time and judge the candidates, tell all about them, and return the one to keep.

    Raises:
        ComputekitError: the model cannot be run, or no candidate could be made.
    """
    for name in job.race.without:
        backend.get(name)
    return _Contest(step, job, source, deadline, folder).run()


class _Contest:
    """One race. Programs and model files are written to ``folder``."""

    def __init__(self, step: computekit.StepRun, job: Job, source: ModelFile, deadline: Deadline, folder: Path) -> None:
        from . import samples
        from .gate import Gate

        self.step, self.job, self.source, self.deadline, self.folder = step, job, source, deadline, folder
        _ = step.device  # fixes seed and threads
        module, arch = samples.load(job)
        generates = callable(getattr(module, "can_generate", None)) and module.can_generate()  # type: ignore[operator]
        inputs = samples.example(job, module, arch, job.race.batch or (1 if generates else _BATCH))[0].to(step.device)
        self.module = module.to(step.device)
        self.gate: Gate = Gate(step, job, self.module, inputs)
        self.runners = [Runner("the original", self.module, bytes=files.size_bytes(job.model))]
        self.rounds = Rounds(step, self.runners[0], inputs)
        self.original_s = self.rounds.warm_up(self.runners[0])
        self.small = job.goal.objective == "bytes"

    def run(self) -> Prepared:
        if "compile" not in self.job.race.without:
            self.runners.append(_baseline(self.job))
        for runner in _made(self.step, self.job, self.source, self.deadline, self.folder):
            self.runners.append(runner)
            self._load(runner)
        for runner in self.runners:
            self._judge(runner)
        seconds = self.job.race.seconds
        self.rounds.all_of(self._racing, seconds)
        if not self.small:
            self._make_milder()
            self.rounds.until_apart(self._fit, seconds)
        contenders = [runner for runner in self._racing if runner.prepared is not None]
        if not contenders:
            why = "; ".join(f"{runner.name} {runner.lost}" for runner in self.runners if runner.lost)
            raise ComputekitError(
                f"{self.job.model}: no candidate of --backend auto is left ({why}); --backend torch needs no code"
            )
        best = _choose(contenders, self.small)
        self._tell(best)
        assert best.prepared is not None
        return replace(best.prepared, missed=best.lost)

    @property
    def _racing(self) -> list[Runner]:
        return [runner for runner in self.runners if runner.module is not None]

    @property
    def _fit(self) -> list[Runner]:
        """Those that may be kept."""
        return [runner for runner in self._racing if runner.prepared is not None and not runner.lost]

    def _load(self, runner: Runner) -> None:
        """Write the candidate's files and load them as a user would."""
        if runner.prepared is None:
            return
        target = _new_folder(self.folder, "file") / self.job.model.name
        try:
            runner.module = candidates.loaded(self.step, self.job, self.source, runner.prepared, target)
        except Exception as error:
            runner.prepared, runner.lost = None, f"failed: {_line(error)}"
            return
        runner.program_bytes = runner.prepared.file_bytes
        runner.bytes = files.size_bytes(target) - (runner.program_bytes if target.is_dir() else 0)

    def _judge(self, runner: Runner) -> None:
        """Fill in how near it is; a module that fails here is out."""
        if runner.module is None:
            return
        try:
            seconds = self.rounds.warm_up(runner)
            slower, long = seconds / self.original_s, MIN_ROUNDS * seconds > self.job.race.seconds
            if slower > _HOPELESS and long and not self.small:
                runner.module = None
                runner.lost = f"takes {slower:.0f} times as long as the original; --race-seconds gives it more time"
                return
            verdict = self.gate.judge(runner.module, runner.name)
        except Exception as error:  # a compiler or a runtime of somebody else
            runner.module, runner.lost = None, f"failed: {_line(error)}"
            return
        runner.drop, runner.cosine, runner.lost = verdict.drop, verdict.cosine, verdict.missed

    def _make_milder(self) -> None:
        """Give programs that lose too much, and are faster than all that do not, some layers in floats."""
        done = set()
        for runner in sorted(self._racing, key=lambda each: -each.speed):
            to_beat = max((each.speed for each in self._fit), default=0.0)
            if runner.prepared is None or not runner.lost or runner.speed < _WORTH * to_beat:
                continue
            candidate = runner.prepared.candidate
            way = (candidate.backend.name, candidate.request.scheme, candidate.activations)
            if not candidate.backend.partial or way in done or self.deadline.left < 0:
                continue
            done.add(way)
            self._relax(runner, candidate)

    def _relax(self, runner: Runner, candidate: Candidate) -> None:
        self.step.say(f"{runner.name}: {runner.lost}; leaving layers in floats")
        layers = milder.ranked(self.step, candidate, self.gate.ranking, self.module, self.deadline)

        def attempt(floats: tuple[str, ...]) -> tuple[Runner, float]:
            made = _prepared(self.step, self.job, self.source, replace(candidate, floats=floats), self.folder)
            self._load(made)
            self._judge(made)
            return made, made.drop if made.drop is not None else float("inf")

        assert runner.drop is not None
        found, tried = milder.fewest(layers, runner.drop, self.gate.bound, self.deadline, attempt)
        self.step.details.setdefault("milder", []).append({"name": runner.name, "tried": tried})
        if found is not None and found.module is not None:
            self.runners.append(found)
            self.rounds.all_of([self.runners[0], found], 0)

    def _tell(self, best: Runner) -> None:
        """All about the race, for the record and for the person."""
        import torch

        about = {"clock": self.rounds.clock, "threads": torch.get_num_threads(), "batch": len(self.rounds.inputs)}
        rows = [runner.row() for runner in self.runners]
        self.step.details["race"] = {**about, "gate": self.gate.about(), "candidates": rows}
        self.step.show(_table(self.runners, best))
        self.step.show(self.gate.sentence())
        if best.lost:
            self.step.note(f"no candidate computes what the original does; the nearest was saved ({best.lost})")
        elif best.speed < 1:
            self.step.note(
                f"nothing is faster than the original here: {best.name} runs at {best.speed:.2f} of its speed"
            )


def _made(step: computekit.StepRun, job: Job, source: ModelFile, deadline: Deadline, folder: Path) -> Iterator[Runner]:
    """A runner for each candidate: with what there is to write, or with why there is nothing."""
    calibrated = bool(job.calibration.data or job.goal.data)
    for each in (each for name, each in backend.known().items() if name not in job.race.without):
        if each.missing:
            yield Runner(each.name, lost=f"not installed: pip install 'computekit[{each.extra}]'")
            continue
        for request in _ways(each, job.request):
            candidate = _candidate(each, request)
            if candidate.activations == "static" and not calibrated:
                yield Runner(candidate.name, lost="needs data to calibrate on: --calibration DATA")
            elif deadline.left < 0:
                yield Runner(candidate.name, lost="no time left (--time-budget)")
            else:
                yield _prepared(step, job, source, candidate, folder)


def _prepared(step: computekit.StepRun, job: Job, source: ModelFile, candidate: Candidate, folder: Path) -> Runner:
    """A runner with what there is to write, or with why it failed; the files of a program go below ``folder``."""
    runner = Runner(candidate.name)
    place = _new_folder(folder, "program")
    step.say(f"preparing {candidate.name}")
    try:
        candidates.check_place(step, job, source, candidate.backend)
        decisions = candidates.decide(step, job, source, candidate)
        runner.prepared = candidates.prepare(step, job, source, candidate, decisions, place)
    except click.UsageError:
        raise
    except Exception as error:  # exporters and compilers fail in many ways; the others may still run
        runner.lost = f"failed: {_line(error)}"
    return runner


def _new_folder(inside: Path, name: str) -> Path:
    path = inside / f"{name}-{len(list(inside.iterdir()))}"
    path.mkdir()
    return path


def _ways(each: backend.Backend, request: Request) -> list[Request]:
    """The requests that a backend is asked for: of the scheme and activations that were named, or of all."""
    found = []
    for scheme, activations, rest in _WAYS:
        bits = 16 if scheme in ("bf16", "fp16") else 8
        asked = not request.scheme or request.scheme == scheme
        wanted = request.activations in (None, activations) and request.rest in (None, rest)
        possible = bits in each.bits and (rest is None or 16 in each.bits)
        worth = each.name != "compile" or activations == "dynamic" or scheme == "bf16"  # compiling takes long
        if asked and wanted and possible and worth and (bits == 16 or activations in each.activations):
            found.append(replace(request, scheme=scheme, activations=activations, rest=rest))
    if request.scheme and not found and request.treatment.scheme.bits in each.bits:
        found.append(request)
    # a torch module with static grids takes and gives float32
    return [r for r in found if not (each.export is None and r.activations == "static" and r.rest)]


def _candidate(each: backend.Backend, request: Request) -> Candidate:
    activations = request.activations or "float"
    stored = request if each.export is None else replace(request, activations="float")
    return Candidate(each, stored, activations)


def _baseline(job: Job) -> Runner:
    """The original compiled: a fair thing to be compared with."""
    from . import samples

    module, _ = samples.load(job)
    compiled = backend.known().get("compile")
    if compiled is None:
        return Runner("the original, compiled", lost="there is no backend called compile")
    source = computekit.open_model(job.model, trust_pickle=job.trust_pickle)
    return Runner("the original, compiled", compiled.load(source, lambda: module))


def _choose(contenders: list[Runner], small: bool) -> Runner:
    """The fastest that computes the same, or the smallest where bytes are the objective; else the nearest."""
    fit = [runner for runner in contenders if not runner.lost]
    if not fit:
        return max(contenders, key=lambda runner: (-(runner.drop or 0.0), runner.cosine or 0.0))
    best = min(fit, key=lambda r: r.bytes + r.program_bytes) if small else fastest(fit)
    for runner in fit:
        if runner is not best:
            runner.lost = f"{'larger' if small else 'slower'} than {best.name}"
    return best


def _table(runners: list[Runner], best: Runner) -> str:
    """All candidates for a person, the fastest first."""
    from tabulate import tabulate

    rows = []
    for runner in sorted(runners, key=lambda each: -each.speed):
        interval = runner.speedup.interval if runner.speedup else None
        between = f" [{interval[0]:.2f}, {interval[1]:.2f}]" if interval else ""
        rows.append(
            [
                runner.name,
                f"{runner.speed:.2f}{between}" if runner.speedup else "",
                f"{(runner.bytes + runner.program_bytes) / runners[0].bytes:.3f}" if runner.bytes else "",
                "" if runner.cosine is None else f"{runner.cosine:.4f}",
                "" if runner.drop is None else f"{runner.drop:.3g}",
                "kept" if runner is best else runner.lost,
            ]
        )
    return tabulate(rows, ["candidate", "speed-up", "bytes", "cosine", "drop", ""], disable_numparse=True)


def _line(error: BaseException) -> str:
    return f"{(str(error).splitlines() or [type(error).__name__])[0][:160]}"
