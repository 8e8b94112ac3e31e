"""A plugin with tiny steps of every kind, for tests of the pipeline: a model is a text file, a step adds a line."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

import computekit
from computekit import files, options
from computekit.options import InputPath


def write(run: computekit.StepRun, lines: list[str], default: str) -> None:
    with run.writing(default) as target:
        target.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    run.put("parameters", len(lines))


@click.command()
@options.data()
@click.option("--width", type=int, default=1)
@options.step
def grow(run: computekit.StepRun, data: str | None, width: int) -> None:
    """Make a model from nothing."""
    write(run, [f"grow {data} width {width} seed {run.seed} threads {run.threads}"], "grown.pt")


@click.command()
@options.model
@click.option("--by", type=float, required=True)
@click.option("--mode", type=click.Choice(["fast", "exact"]), default="fast")
@click.option("--keep", multiple=True)
@click.option("--deep", is_flag=True)
@click.option("--extra", type=options.Arguments())
@click.option("--teacher", type=InputPath("model"))
@options.step
def trim(
    run: computekit.StepRun,
    model: Path,
    by: float,
    mode: str,
    keep: tuple[str, ...],
    deep: bool,
    extra: dict[str, object] | None,
    teacher: Path | None,
) -> None:
    """Make a model from a model."""
    if by < 0:
        raise computekit.ComputekitError(f"cannot trim by {by}; give a positive number")
    lines = run.input(model).read_text(encoding="utf-8").splitlines()
    taught = "" if teacher is None else f" teacher {len(run.input(teacher).read_text(encoding='utf-8'))}"
    write(run, [*lines, f"trim {by} {mode} {list(keep)} {deep} {extra}{taught}"], "trimmed.pt")


@click.command()
@options.model
@options.step
def extend(run: computekit.StepRun, model: Path) -> None:
    """Make a folder of a folder, with one file more."""
    with run.writing("extended") as target:
        shutil.copytree(run.input(model), target)
        (target / "more.json").write_text("{}", encoding="utf-8")


@click.command()
@options.models
@options.step
def blend(run: computekit.StepRun, models: tuple[Path, ...]) -> None:
    """Make a model from several."""
    write(run, [f"blend {run.input(m).name}" for m in models], "blended.pt")


@contextmanager
def alone(me: str) -> Iterator[None]:
    """Leave a mark while working, and fail if ``race`` and another measurement work at the same time."""
    marks = Path("working")
    marks.mkdir(exist_ok=True)
    mark = marks / f"{me}.{os.getpid()}"
    mark.touch()
    try:
        time.sleep(0.2)
        others = [other.name for other in marks.iterdir() if other != mark]
        if others and (me == "race" or any(name.startswith("race") for name in others)):
            raise computekit.ComputekitError(f"{me} is not alone: {others}")
        yield
    finally:
        mark.unlink()


@click.command()
@options.model
@options.step
def weigh(run: computekit.StepRun, model: Path) -> None:
    """Give a record of one model."""
    with alone("weigh"):
        row = run.row(run.label or model.stem, files.sha256(run.input(model)))
        row.quantities["file_bytes"] = computekit.Quantity(value=files.size_bytes(model), unit="B")


@click.command()
@options.models
@options.step
def race(run: computekit.StepRun, models: tuple[Path, ...]) -> None:
    """Give a record of several models; a measurement."""
    with alone("race"):
        for place, model in enumerate(models, start=1):
            row = run.row(model.stem, files.sha256(run.input(model)))
            row.quantities["latency_s"] = computekit.Quantity(value=float(place), unit="s", how="measured")


@click.command()
@options.records
@options.step
def bill(run: computekit.StepRun, records: tuple[Path, ...]) -> None:
    """Give a record of records."""
    run.put("records", len([run.input(path) for path in records]))


@computekit.hookimpl
def computekit_steps() -> list[computekit.Step]:
    return [
        computekit.Step("grow", grow, takes="nothing", gives="model"),
        computekit.Step("trim", trim, takes="model", gives="model"),
        computekit.Step("extend", extend, takes="model", gives="model", keeps_kind=True),
        computekit.Step("blend", blend, takes="models", gives="model"),
        computekit.Step("weigh", weigh, takes="model", gives="record"),
        computekit.Step("race", race, takes="models", gives="record", exclusive=True),
        computekit.Step("bill", bill, takes="records", gives="record"),
    ]
