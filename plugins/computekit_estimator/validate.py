"""``computekit estimator validate``: the whole table of published runs recomputed, with the error of each row."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from computekit import ComputekitError, UnknownName, options

from .constants import CONSTANTS, Constants
from .runs import Run

FITTED = ("mlm21_t1", "bloomq", "foundry", "gptfast", "ft")
"""Families whose rows the constants were fitted to; all others were held out. Chosen before the first fit."""

CLASSES = {
    "training time": ("iter_time_s", "tokens_per_s_per_gpu", "tokens_per_s", "samples_per_s", "tflops_per_gpu", "mfu",
                      "hfu", "train_days", "train_gpu_hours"),
    "training time, mixtures of experts": (),
    "training time, layout assumed": (),
    "image models by roofline": (),
    "training memory": ("peak_memory_gb",),
    "prefill": ("prefill", "prefill_tokens_per_s"),
    "decode": ("decode_latency_ms", "decode_tokens_per_s", "e2e_latency_ms"),
    "counts": ("param_count", "forward_flops", "train_flops", "checkpoint_bytes"),
}  # fmt: skip
"""Kinds that share one model, and so one distribution of errors. A training run that does not say how its devices were
used, or how many there were, is a class of its own, and so are mixtures of experts."""


def class_of(run: Run) -> str:
    """The class of `CLASSES` that a run belongs to; "other" for a kind that is in none."""
    from .images import named
    from .predict import kind_of

    kind = kind_of(run)
    name = next((name for name, kinds in CLASSES.items() if kind in kinds), "other")
    if name in ("training time", "decode") and named(run):
        return "image models by roofline"
    if name != "training time":
        return name
    if run.number("infer_batch"):
        return "decode"
    if said(run):
        return "training time, layout assumed"
    return "training time, mixtures of experts" if run.number("experts") else name


@dataclass(frozen=True)
class Row:
    """One run: what was published, what was predicted, error = predicted / published - 1."""

    id: str
    kind: str
    published: float | None
    predicted: float | None
    error: float | None
    unit: str
    reason_skipped: str | None


@dataclass(frozen=True)
class Errors:
    """A set of rows in one line; errors as fractions. ``bias`` is the median signed error."""

    name: str
    rows: int
    skipped: int
    median: float | None
    largest: float | None
    bias: float | None
    fitted: bool | None = None


def compare(run: Run, constants: Constants = CONSTANTS) -> Row:
    """Predict one run; whatever stands in the way is its reason."""
    from .predict import predict

    published = run.number("value")
    try:
        published = run.value
        predicted = predict(run, constants)
    except ComputekitError as error:
        return Row(run.id, run.kind, published, None, None, run.text("unit"), " ".join(str(error).split()))
    if not math.isfinite(predicted):
        return Row(run.id, run.kind, published, None, None, run.text("unit"), "the prediction is not finite")
    return Row(run.id, run.kind, published, predicted, predicted / published - 1, run.text("unit"), None)


def summarise(name: str, rows: Iterable[Row], fitted: bool | None = None) -> Errors:
    """Median and largest absolute error, and bias, of the rows that could be predicted."""
    rows = list(rows)
    errors = [row.error for row in rows if row.error is not None]
    skipped = len(rows) - len(errors)
    if not errors:
        return Errors(name, len(rows), skipped, None, None, None, fitted)
    sizes = [abs(error) for error in errors]
    return Errors(
        name, len(rows), skipped, statistics.median(sizes), max(sizes), statistics.median(errors), fitted
    )  # fmt: skip


def summary(runs: list[Run], rows: list[Row]) -> dict[str, list[Errors]]:
    """Errors by family and class of quantity, by class, and by class for fitted and held-out families apart."""
    pairs = [(run.family, class_of(run), row) for run, row in zip(runs, rows, strict=True)]
    groups: dict[str, list[Errors]] = {"by_family": [], "by_class": [], "fitted_and_held_out": []}
    keys = sorted({(family, cls) for family, cls, _ in pairs})
    for key in keys:
        mine = [row for family, cls, row in pairs if (family, cls) == key]
        groups["by_family"].append(summarise(": ".join(key), mine, key[0] in FITTED))
    for wanted in dict.fromkeys([*CLASSES, *(cls for _, cls in keys)]):
        of_class = [(family in FITTED, row) for family, cls, row in pairs if cls == wanted]
        if not of_class:
            continue
        groups["by_class"].append(summarise(wanted, (row for _, row in of_class)))
        for fitted in (True, False):
            part = [row for was_fitted, row in of_class if was_fitted is fitted]
            if part and wanted != "counts":
                groups["fitted_and_held_out"].append(summarise(wanted, part, fitted))
    return groups


@click.command()
@click.option("--runs", "runs_file", type=options.InputPath("runs"), help="CSV of published runs.  [default: shipped]")
@click.option("--family", help="Only the runs whose id begins with this family, e.g. bloomq.")
@options.as_json
@options.common
def validate(runs_file: Path | None, family: str | None, as_json: bool) -> None:
    """Recompute every published run and print its error; a run without a prediction is listed with its reason.

    Any CSV with the columns of the shipped one will do; only id, kind, value and unit must be there. A run whose
    layout, devices or batch are not published is predicted with assumptions, which are named.
    The error is predicted / published - 1. The constants of the model are the same for every row; families that
    they were fitted to and families that were held out are summed up apart.

    \b
    Example:
      computekit estimator validate --family mlm21_t1
      computekit estimator validate --runs mine.csv --json
    """
    from . import runs as published

    runs = published.load(runs_file)
    if family is not None:
        known = sorted({run.family for run in runs})
        runs = [run for run in runs if run.family == family or run.id.startswith(f"{family}_")]
        if not runs:
            raise UnknownName("family", family, known)
    rows = [compare(run) for run in runs]
    groups = summary(runs, rows)
    if as_json:
        document = {
            "rows": [asdict(row) for row in rows],
            "assumed": {run.id: texts for run in runs if (texts := said(run))},
            "summary": {name: [asdict(errors) for errors in group] for name, group in groups.items()},
        }
        click.echo(json.dumps(document, indent=2))
        return
    click.echo(_rows_table(rows, [said(run) for run in runs]))
    for title, group in (
        ("Error by family", groups["by_family"]),
        ("Error by quantity", groups["by_class"]),
        ("Fitted and held-out families", groups["fitted_and_held_out"]),
    ):
        click.echo(f"\n{title}\n{errors_table(group)}")


def said(run: Run) -> list[str]:
    """What a prediction of this run assumes because it is not published."""
    from .predict import assumptions

    try:
        return list(assumptions(run))
    except ComputekitError:  # such a run has no prediction
        return []


def _rows_table(rows: list[Row], assumed: list[list[str]]) -> str:
    from tabulate import tabulate

    def last(row: Row, texts: list[str]) -> str:
        if row.reason_skipped is not None:
            return f"not predicted: {row.reason_skipped}"
        return f"{row.unit} (assumed: {', '.join(texts)})" if texts else row.unit

    body = [
        (row.id, row.kind, _number(row.published), _number(row.predicted), percent(row.error, sign=True),
         last(row, texts))
        for row, texts in zip(rows, assumed, strict=True)
    ]  # fmt: skip
    header = ["run", "kind", "published", "predicted", "error", "unit"]
    return tabulate(body, header, tablefmt="plain", disable_numparse=True, colalign=("left",) * 2 + ("right",) * 3)


def errors_table(group: list[Errors]) -> str:
    """One line for each set of rows."""
    from tabulate import tabulate

    body: list[tuple[Any, ...]] = [
        (e.name, {True: "fitted", False: "held out", None: ""}[e.fitted], e.rows, e.skipped, percent(e.median),
         percent(e.largest), percent(e.bias, sign=True))
        for e in group
    ]  # fmt: skip
    header = ["", "", "rows", "not predicted", "median |error|", "largest", "bias"]
    return tabulate(body, header, tablefmt="plain", disable_numparse=True, colalign=("left", "left") + ("right",) * 5)


def percent(value: float | None, sign: bool = False) -> str:
    """A fraction as a percentage."""
    return "" if value is None else f"{100 * value:{'+' if sign else ''}.1f}%"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"
