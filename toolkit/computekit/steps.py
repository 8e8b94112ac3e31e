"""`StepRun`: one run of one step. It knows what was asked, collects what came out, and writes the record."""

from __future__ import annotations

import datetime
import functools
import importlib.metadata
import platform
import sys
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import click

from . import devices, files, following, host, loading, records, tables
from .errors import StepFault
from .hashing import Hashing
from .inputs import Input
from .records import FileRef, How, Lineage, Quantity, Record, Row
from .verbs import loaded

if TYPE_CHECKING:
    import torch
    from tqdm import tqdm

_NOT_ASKED = {"output", "as_json", "label"}
_VERSIONED = ("computekit", "torch", "numpy", "safetensors")


class StepRun:
    """Handed to a step's function as ``run``.

    * ``run.input(path)`` registers a file that goes in.
    * ``with run.writing(default) as temporary:`` writes the model atomically to ``--output``.
    * ``run.put("file_bytes", 123, "B")`` adds a number to the record; ``run.unknown(key, reason)`` a known gap.
    * ``run.say(text)`` talks to a person (standard error), ``run.show(text)`` shows a result (standard output).
    * ``run.progress(total, text)`` is a progress bar that obeys ``--quiet``.

    On success the record is written beside the output (or to it, for a step that gives a record) and printed.
    """

    def __init__(
        self,
        ctx: click.Context,
        output: Path | None,
        seed: int,
        device: str,
        threads: int | None,
        label: str | None,
        as_json: bool,
    ) -> None:
        self.seed, self.threads, self.label, self.as_json = seed, threads, label, as_json
        self.quiet: bool = ctx.meta.get("computekit.quiet", False)
        self.details: dict[str, Any] = {}
        self.notes: list[str] = []
        self.rows: list[Row] = []
        self._device_name = device
        self._asked_output = output
        self._written: Path | None = None
        self._dry = False
        self._output: FileRef | None = None
        self._inputs: list[Hashing] = []
        self._beside: list[Record | None] = []
        self._train_flops: float | None = None
        self._shown: list[str] = []
        self._step = _step_of(ctx)
        self._known = host.current().steps.get(self._step)
        self._may_measure = self._known is None or self._known.exclusive
        self._options = {k: _plain(v) for k, v in ctx.params.items() if k not in _NOT_ASKED}
        self._started = time.time()
        host.current().taking_part.clear()  # what an earlier step in this process looked up is not part of this run
        if output is not None:
            files.check_writable(output)

    # -- what the step may use -----------------------------------------------------------------------------------

    @functools.cached_property
    def device(self) -> torch.device:
        """The device to compute on; asking for it seeds torch and fixes the number of threads."""
        devices.make_repeatable(self.seed, self.threads)
        return devices.resolve(self._device_name)

    def input(self, path: Path) -> Path:
        """Register a file that goes in; the record will have its hash, and what is known of how it was made.

        It is hashed in a thread while the step works on it. In an exclusive step, which measures, and in commands
        that are no step, it is hashed now: nothing may run beside a measurement.

        Raises:
            FileProblem: the record beside it is damaged.
        """
        hashing = Hashing(path)
        if self._may_measure:
            hashing.wait()
        beside = records.beside(path)
        self._inputs.append(hashing)
        self._beside.append(records.load(beside) if beside.exists() else None)
        return path

    @contextmanager
    def writing(self, default: Path | str, companions: Collection[str] | None = None) -> Iterator[Path]:
        """Yield a temporary path; it becomes ``--output`` (or ``default``) when the block ends well.

        With ``companions``, so do the files that the block writes beside it; they are the names of those that belong
        to the old output (see `files.atomic`). Without, the program that runs an old model file goes with it.

        Raises:
            FileProblem: an input changed while it was read; the target stays as it was.
        """
        target = self.output(default)
        if companions is None and self._known is not None and self._known.gives == "model":
            companions = _programs(target)
        with files.atomic(target, companions) as temporary, following.wanted(temporary):
            yield temporary
            if not temporary.exists():
                raise StepFault(self._step, f"it wrote nothing to the path that run.writing() gave it for {target}")
            hashing = Hashing(temporary)
            files.sync(temporary)  # beside the hashing
            output = hashing.wait()
            for read in self._inputs:
                read.wait()
        self._written = target
        self._output = output.model_copy(update={"path": str(target)})

    def writes_nothing(self) -> None:
        """Say that this run only shows what it would do (``--dry-run``): neither a model nor a record is missed."""
        self._dry = True

    def output(self, default: Path | str) -> Path:
        """Where the result will go; refuses to overwrite an input."""
        target = self._asked_output or Path(default)
        files.check_writable(target)
        files.check_spares(target, [hashing.path for hashing in self._inputs])
        return target

    def put(
        self,
        key: str,
        value: float | int | str,
        unit: str = "",
        *,
        how: How = "computed",
        interval: tuple[float, float] | None = None,
        confidence: float | None = None,
        method: str | None = None,
        samples: list[float] | None = None,
    ) -> None:
        """Add a quantity to the row of this run's own output.

        ``how`` is "measured", "computed", "catalog" or "given". ``interval`` is the confidence interval in ``unit``, at
        level ``confidence``; ``method`` says how the value or its interval was obtained; ``samples`` are raw
        measurements in the order taken.
        """
        try:
            quantity = Quantity(
                value=value,
                unit=unit,
                how=how,
                interval=interval,
                confidence=confidence,
                method=method,
                samples=samples,
            )
        except ValueError as error:  # pydantic's, in many lines
            raise StepFault(self._step, f"run.put({key!r}, {value!r}): {records.complaint(error)}") from error
        self._own_row().quantities[key] = quantity

    def unknown(self, key: str, reason: str, unit: str = "") -> None:
        """Name a quantity that this run could not find out, and why."""
        if not reason:
            raise StepFault(self._step, f"run.unknown({key!r}) needs a reason")
        self._own_row().quantities[key] = Quantity(unit=unit, reason=reason)

    def row(self, label: str, sha256: str | None = None) -> Row:
        """A new row, for a step that reports on several subjects."""
        row = Row(label=label, sha256=sha256)
        self.rows.append(row)
        return row

    def spent_training(self, flops: float) -> None:
        """Say how many FLOPs of training this step spent; the record adds those of the models it started from."""
        self._train_flops = (self._train_flops or 0.0) + flops

    def note(self, text: str) -> None:
        """Add a sentence that a reader must know to judge the numbers."""
        self.notes.append(text)

    def say(self, text: str) -> None:
        """Tell the person at the terminal something; standard error, silent under --quiet."""
        if not self.quiet:
            click.echo(text, err=True)

    def show(self, text: str) -> None:
        """Show a result of the step's own, such as a per-layer table, before the summary; not with --json."""
        self._shown.append(text)

    def progress(self, total: int, text: str, unit: str = "it") -> tqdm[Any]:
        """A progress bar on standard error; use it as a context manager and call ``update``."""
        from tqdm import tqdm

        return tqdm(total=total, desc=text, unit=unit, file=sys.stderr, leave=False,
                    disable=self.quiet or not sys.stderr.isatty())  # fmt: skip

    # -- the record ----------------------------------------------------------------------------------------------

    def __enter__(self) -> StepRun:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self._finish()

    def record(self) -> Record:
        """The record of this run as it stands."""
        inputs = [hashing.wait() for hashing in self._inputs]
        output = self._output
        lineage: list[Lineage] = []
        if output is not None:
            lineage, unknown = self._ancestors(inputs)
            own = self._own_row()
            own.label = self.label or own.label or _stem(Path(output.path))
            own.sha256 = output.sha256
            own.quantities["train_flops"] = self._training(lineage, unknown)
            spent = None if unknown else self._train_flops or 0.0
            lineage = [*lineage, Lineage(step=self._step, sha256=output.sha256, train_flops=spent)]
        used_device = "device" in self.__dict__
        return Record(
            step=self._step,
            options=self._options,
            inputs=inputs,
            output=output,
            rows=self.rows,
            details=self.details,
            notes=self.notes,
            lineage=lineage,
            seed=self.seed,
            device=devices.describe(self.device) if used_device else None,
            versions=_versions(),
            plugins=_plugins(self._step),
            timing={
                "started": datetime.datetime.fromtimestamp(self._started, datetime.UTC).isoformat(timespec="seconds"),
                "duration_s": round(time.time() - self._started, 3),
            },
        )

    def _finish(self) -> None:
        record = self.record()
        if self._written is not None:
            record.save(records.beside(self._written))
            self.say(f"wrote {self._written} and {records.beside(self._written).name}")
        elif self._dry:
            pass
        elif self._known is not None and self._known.gives == "model":
            raise StepFault(self._step, "it wrote no model; a step that gives one writes it in 'with run.writing()'")
        elif self._asked_output is not None:
            record.save(self._asked_output)
            self.say(f"wrote {self._asked_output}")
        if self.as_json:
            click.echo(record.to_json(), nl=False)
            return
        for text in self._shown:
            click.echo(text + "\n")
        click.echo(tables.summary(record))

    def _own_row(self) -> Row:
        if not self.rows:
            self.rows.append(Row(label=self.label or ""))
        return self.rows[0]

    def _ancestors(self, inputs: list[FileRef]) -> tuple[list[Lineage], list[str]]:
        """The steps that led to ``inputs``, by the records beside them, and the inputs of which none tells."""
        lineage: dict[str, Lineage] = {}
        unknown = []
        if not inputs and self._known is not None and self._known.takes != "nothing":
            unknown.append("the input, which run.input() was not told of,")
        for reference, beside in zip(inputs, self._beside, strict=True):
            if beside is None or beside.output is None or beside.output.sha256 != reference.sha256:
                unknown.append(reference.path)
                continue
            for entry in beside.lineage:
                lineage.setdefault(entry.sha256, entry)
        return list(lineage.values()), unknown

    def _training(self, lineage: list[Lineage], unknown: list[str]) -> Quantity:
        """train_flops: what all training that led to this model cost, as far as records tell."""
        gaps = [entry for entry in lineage if entry.train_flops is None]
        if unknown:
            reason = f"no record beside {', '.join(unknown)} tells how it was trained"
            return Quantity(value=None, unit="FLOP", reason=reason)
        if gaps:
            reason = f"the record of step {gaps[0].step} does not tell its training cost"
            return Quantity(value=None, unit="FLOP", reason=reason)
        total = sum(entry.train_flops or 0.0 for entry in lineage) + (self._train_flops or 0.0)
        method = "forward and backward FLOPs of every step that led to this model"
        return Quantity(value=total, unit="FLOP", method=method)


def _programs(target: Path) -> set[str] | None:
    """Names of the files that are the program of the model file ``target``; None if it has none."""
    if not target.is_file():
        return None
    from .models import program_files

    return program_files.belonging(target) or None


def _step_of(ctx: click.Context) -> str:
    """The step that the running command belongs to."""
    words = tuple(ctx.command_path.split()[1:])
    steps = host.current().steps.values()
    for step in steps:
        if step.argv == words:
            return step.name
    for step in steps:
        if loaded(step.command) is ctx.command:
            return step.name
    return " ".join(words) or (ctx.command.name or "step")


def _stem(path: Path) -> str:
    name = path.name.removesuffix(".index.json") if files.is_index(path) else path.name
    return name.removesuffix(Path(name).suffix) or name


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, Input):
        return str(value)
    return value


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for name in _VERSIONED:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def _plugins(step: str) -> list[records.Plugin]:
    """The plugin that owns the step, and those whose architectures, data sets, formats or schemes it looked up."""
    registry = host.current()
    registry.takes_part(registry.steps.get(step))
    plugins = []
    for _, plugin in sorted(registry.taking_part.items()):
        source = loading.source_folder(plugin.plugin)
        plugins.append(
            records.Plugin(
                name=plugin.name,
                distribution=plugin.distribution,
                version=plugin.version,
                sha256=files.sha256(source) if source else None,
            )
        )
    return plugins
