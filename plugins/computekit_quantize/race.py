"""``--backend auto``: all candidates on the same inputs in turns, and the fastest that computes what the original does.

The clock is CPU time for one thread and wall time for several. Every round calls each model once, in a random order; a
model's speed-up is the median over rounds of the time of the original, in float32 and eager, over its own.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import computekit
from computekit import ComputekitError, files, options

from . import backend, candidates
from .candidates import Candidate, Prepared
from .plan import Request

if TYPE_CHECKING:
    import torch
    from torch import nn

    from computekit import ModelFile
    from computekit.inputs import Input
    from computekit.statistics import Estimate

    from .clock import Deadline
    from .flow import Job

COSINE = 0.997
"""Least mean cosine of a candidate's outputs to the original's, where no --max-drop says how much may be lost."""

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

MIN_ROUNDS, MAX_ROUNDS = 7, 60

_BATCH = 32
_SECONDS = 3.0


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
class Runner:
    """One model in the race; ``seconds`` holds one call per round, ``lost`` why it is not the one that is kept."""

    name: str
    module: nn.Module | None = None
    prepared: Prepared | None = None
    bytes: int = 0
    program_bytes: int = 0
    seconds: list[float] = field(default_factory=list)
    speedup: Estimate | None = None
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
            "samples_s": self.seconds,
        }


def run(step: computekit.StepRun, job: Job, source: ModelFile, deadline: Deadline, folder: Path, stem: str) -> Prepared:
    """Make, time and judge the candidates, tell all about them, and return the one to keep.

    Raises:
        ComputekitError: the model cannot be run, or no candidate could be made.
    """
    import torch

    from . import samples

    for name in job.race.without:
        backend.get(name)
    _ = step.device  # fixes seed and threads
    module, arch, _ = computekit.load_module(job.model, job.arch, trust_pickle=job.trust_pickle)
    generates = callable(getattr(module, "can_generate", None)) and module.can_generate()  # type: ignore[operator]
    inputs = samples.example(job, module, arch, job.race.batch or (1 if generates else _BATCH))
    gauge = _Gauge(step, job, module, inputs)
    runners = [Runner("the original", module.to(step.device), bytes=files.size_bytes(job.model))]
    if "compile" not in job.race.without:
        runners.append(_baseline(job))
    for number, runner in enumerate(_made(step, job, source, deadline, folder, stem)):
        runners.append(runner)
        if runner.prepared is not None:
            target = folder / str(number) / stem
            target.parent.mkdir()
            _load(step, job, source, runner, target)
    for runner in runners:
        if runner.module is not None:
            gauge.judge(runner)
    racing = [runner for runner in runners if runner.module is not None]
    _time(racing, inputs.to(step.device), job.race.seconds, step)
    step.details["race"] = {
        "clock": "cpu" if torch.get_num_threads() == 1 else "wall",
        "threads": torch.get_num_threads(),
        "batch": len(inputs),
        "candidates": [],
    }
    best = _choose([runner for runner in racing if runner.prepared is not None], job)
    step.details["race"]["candidates"] = [runner.row() for runner in runners]
    step.show(_table(runners, best))
    if best.lost:
        step.note(f"no candidate computes what the original does; the nearest was saved ({best.lost})")
    elif best.speedup is not None and best.speedup.value < 1:
        step.note(
            f"nothing is faster than the original here: {best.name} runs at {best.speedup.value:.2f} of its speed"
        )
    assert best.prepared is not None
    return replace(best.prepared, missed=best.lost)


def _made(
    step: computekit.StepRun, job: Job, source: ModelFile, deadline: Deadline, folder: Path, stem: str
) -> Iterator[Runner]:
    """A runner for each candidate: with what there is to write, or with why there is nothing."""
    calibrated = bool(job.calibration.data or job.goal.data)
    taking_part = [each for name, each in backend.known().items() if name not in job.race.without]
    for number, (each, ways) in enumerate((each, _ways(each, job.request)) for each in taking_part):
        if each.missing:
            yield Runner(each.name, lost=f"not installed: pip install 'computekit[{each.extra}]'")
            continue
        for request in ways:
            candidate = _candidate(each, request)
            runner = Runner(candidate.name)
            if candidate.activations == "static" and not calibrated:
                runner.lost = "needs data to calibrate on: --calibration DATA"
            elif deadline.left < 0:
                runner.lost = "no time left (--time-budget)"
            else:
                place = folder / f"{number}-{len(list(folder.iterdir()))}"
                place.mkdir()
                step.say(f"preparing {candidate.name}")
                try:
                    decisions = candidates.decide(step, job, source, candidate)
                    runner.prepared = candidates.prepare(step, job, candidate, decisions, place, stem)
                except click.UsageError:
                    raise
                except Exception as error:  # exporters and compilers fail in many ways; the others may still run
                    runner.lost = f"failed: {_line(error)}"
            yield runner


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
    module, _, _ = computekit.load_module(job.model, job.arch, trust_pickle=job.trust_pickle)
    compiled = backend.known().get("compile")
    if compiled is None:
        return Runner("the original, compiled", lost="there is no backend called compile")
    source = computekit.open_model(job.model, trust_pickle=job.trust_pickle)
    return Runner("the original, compiled", compiled.load(source, lambda: module))


def _load(step: computekit.StepRun, job: Job, source: ModelFile, runner: Runner, target: Path) -> None:
    """Write the candidate's files and load them as a user would."""
    assert runner.prepared is not None
    target = target.with_suffix(job.model.suffix) if not job.model.is_dir() else target
    try:
        runner.prepared.write(step, source, target)
        module, _, _ = computekit.load_module(target, job.arch, trust_pickle=job.trust_pickle)
        runner.module = module.to(step.device)
    except Exception as error:
        runner.prepared, runner.lost = None, f"failed: {_line(error)}"
        return
    runner.program_bytes = runner.prepared.file_bytes
    runner.bytes = files.size_bytes(target) - (runner.program_bytes if target.is_dir() else 0)


class _Gauge:
    """Compares each candidate with the original on the inputs of the race, or by the metric of --data."""

    def __init__(self, step: computekit.StepRun, job: Job, module: nn.Module, inputs: torch.Tensor) -> None:
        from . import metric

        self.step, self.inputs, self.bound = step, inputs.to(step.device), job.goal.max_drop
        self.metric = None
        if job.goal.data is not None and self.bound is not None:
            data = computekit.load_data(job.goal.data, model=job.model, window=job.goal.window)
            goal = job.goal
            self.metric = metric.make(goal.metric, goal.metric_direction, data, step.device, goal.batch_size, module)
            self.before = self.metric.score(module.to(step.device), "validation")
        self.reference = _outputs(module.to(step.device), self.inputs)

    def judge(self, runner: Runner) -> None:
        """Fill in how near it is; a module that fails here is out."""
        import torch

        assert runner.module is not None
        try:
            outputs = _outputs(runner.module, self.inputs)
            runner.cosine = torch.cosine_similarity(outputs, self.reference, 1).mean().item()
            if self.metric is not None:
                after = self.metric.score(runner.module, "validation", name=runner.name)
                runner.drop = self.metric.drop(self.before, after)
        except Exception as error:  # a compiler or a runtime of somebody else
            runner.module, runner.lost = None, f"failed: {_line(error)}"
            return
        if self.metric is not None and self.bound is not None and runner.drop is not None:
            if not runner.drop <= self.bound:
                runner.lost = f"loses {runner.drop:.3g} {self.metric.unit}, more than {self.bound:g}"
        elif not runner.cosine >= COSINE:
            runner.lost = f"cosine {runner.cosine:.4f} to the original, below {COSINE}"


def _outputs(module: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    """(N, D): what the module gives for each sample; of hidden states the mean over tokens."""
    import torch

    with torch.inference_mode():  # as where it is timed: torch.compile has a version for each mode
        module(inputs)
        found: Any = module(inputs)
    hidden = getattr(found, "last_hidden_state", None)
    if hidden is not None:
        return torch.as_tensor(hidden).float().mean(1)
    found = found[0] if isinstance(found, tuple) else getattr(found, "logits", found)
    return torch.as_tensor(found).float().flatten(1)


def _time(racing: list[Runner], inputs: torch.Tensor, seconds: float, step: computekit.StepRun) -> None:
    """Fill in seconds and speed-ups; every model has been called before, so that nothing is compiled here."""
    import torch

    from computekit import devices
    from computekit.statistics import quantile_interval

    clock: Callable[[], float] = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    chance = random.Random(0)
    deadline = time.monotonic() + seconds * len(racing)
    with torch.inference_mode(), step.progress(MAX_ROUNDS, "timing", "round") as bar:
        for done in range(MAX_ROUNDS):
            if done >= MIN_ROUNDS and time.monotonic() > deadline:
                break
            for runner in chance.sample(racing, len(racing)):
                assert runner.module is not None
                devices.synchronize(step.device)
                start = clock()
                runner.module(inputs)
                devices.synchronize(step.device)
                runner.seconds.append(clock() - start)
            bar.update()
    for runner in racing:
        pairs = zip(racing[0].seconds, runner.seconds, strict=True)
        runner.speedup = quantile_interval([base / own for base, own in pairs])


def _choose(racing: list[Runner], job: Job) -> Runner:
    """The fastest that computes the same, or the smallest where bytes are the objective; else the nearest."""
    if not racing:
        raise ComputekitError(
            f"{job.model}: no candidate of --backend auto could be made; --backend torch needs no code"
        )
    fit = [runner for runner in racing if not runner.lost]
    if not fit:
        return max(racing, key=lambda runner: (-(runner.drop or 0.0), runner.cosine or 0.0))
    small = job.goal.objective == "bytes"
    best = min(fit, key=lambda r: r.bytes + r.program_bytes if small else -r.speedup.value)  # type: ignore[union-attr]
    for runner in fit:
        if runner is not best:
            runner.lost = f"{'larger' if small else 'slower'} than {best.name}"
    return best


def _table(runners: list[Runner], best: Runner) -> str:
    """All candidates for a person, the fastest first."""
    from tabulate import tabulate

    def speed(runner: Runner) -> float:
        return runner.speedup.value if runner.speedup else -1.0

    rows = []
    for runner in sorted(runners, key=speed, reverse=True):
        interval = runner.speedup.interval if runner.speedup else None
        between = f" [{interval[0]:.2f}, {interval[1]:.2f}]" if interval else ""
        rows.append(
            [
                runner.name,
                f"{runner.speedup.value:.2f}{between}" if runner.speedup else "",
                f"{(runner.bytes + runner.program_bytes) / runners[0].bytes:.3f}" if runner.bytes else "",
                "" if runner.cosine is None else f"{runner.cosine:.4f}",
                "" if runner.drop is None else f"{runner.drop:.3g}",
                "kept" if runner is best else runner.lost,
            ]
        )
    return tabulate(rows, ["candidate", "speed-up", "bytes", "cosine", "drop", ""], disable_numparse=True)


def _line(error: BaseException) -> str:
    return f"{(str(error).splitlines() or [type(error).__name__])[0][:160]}"
