"""``computekit estimator scaling``: compute-optimal parameters and tokens, by published laws or the user's own runs."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from computekit import FileProblem, StepRun, options

from .count import Finite, Putter

if TYPE_CHECKING:
    from .scaling import Law

COLUMNS = ("parameters", "tokens", "loss")


@click.command()
@click.option("--flops", type=Finite(min=0, min_open=True), help="Budget in FLOPs, e.g. 1e24.")
@click.option("--served-tokens", type=Finite(min=0), default=0.0, help="Tokens to serve within the budget.")
@click.option("--law", type=click.Choice(["besiroglu", "hoffmann"]), default="besiroglu", show_default=True,
              help="Published fit; besiroglu corrects hoffmann (Chinchilla).")  # fmt: skip
@click.option("--runs", "runs_file", type=options.InputPath("runs"),
              help="CSV with columns parameters, tokens, loss: fit these instead.")  # fmt: skip
@options.step
def scaling(run: StepRun, flops: float | None, served_tokens: float, law: str, runs_file: Path | None) -> None:
    """Split a compute budget between parameters and tokens so that the loss is lowest.

    The law is L = E + A / N^alpha + B / D^beta. With --served-tokens the budget pays for serving too, and the best
    model is smaller. With --runs the law is fitted to runs of your own; intervals come from resampling them.

    \b
    Example:
      computekit estimator scaling --flops 1e24
      computekit estimator scaling --flops 1e24 --served-tokens 1e12
      computekit estimator scaling --runs mine.csv --flops 1e21
    """
    from . import scaling as laws

    if flops is None and runs_file is None:
        raise click.UsageError("give a budget with --flops, or runs to fit with --runs")
    put = Putter(run.row(run.label or (runs_file.stem if runs_file else law)))
    chosen, others = laws.LAWS[law], []
    if runs_file is not None:
        run.input(runs_file)
        sizes, tokens, losses = _read(runs_file)
        chosen = laws.fit(sizes, tokens, losses)
        others = laws.bootstrap(sizes, tokens, losses, run.seed)
    run.note(f"law: {chosen.source}")
    for name in ("floor", "a", "alpha", "b", "beta"):
        put(name, getattr(chosen, name), "", **_interval([getattr(other, name) for other in others]))
    if flops is not None:
        _put_optimum(put, chosen, others, flops, served_tokens)


def _put_optimum(put: Putter, law: Law, others: list[Law], flops: float, served: float) -> None:
    from .scaling import optimum

    best = optimum(law, flops, served)
    resampled = [optimum(other, flops, served) for other in others]
    for key, field, unit in (
        ("optimal_parameters", "parameters", ""),
        ("optimal_tokens", "tokens", "token"),
        ("loss", "loss", "nat/token"),
    ):
        put(key, getattr(best, field), unit, **_interval([getattr(other, field) for other in resampled]))
    put("tokens_per_parameter", best.tokens / best.parameters, "")
    put("training_flops", best.train_flops, "FLOP", "6 N D")
    put("serving_flops", best.serve_flops, "FLOP", "2 N for each token served")


def _interval(values: list[float]) -> dict[str, Any]:
    """95 % interval of resampled values; nothing where there are none."""
    import numpy as np

    if not values:
        return {}
    low, high = (float(value) for value in np.quantile(values, [0.025, 0.975]))
    return {"interval": (low, high), "confidence": 0.95, "method": f"{len(values)} fits of resampled runs"}


def _read(path: Path) -> tuple[Any, Any, Any]:
    """Columns parameters, tokens and loss as arrays."""
    import numpy as np

    try:
        rows = list(csv.DictReader(path.read_text(encoding="utf-8-sig").splitlines()))
    except (UnicodeDecodeError, csv.Error, IsADirectoryError) as error:
        raise FileProblem(path, "is not a CSV file", f"it needs the columns {', '.join(COLUMNS)}") from error
    missing = [name for name in COLUMNS if not rows or name not in rows[0]]
    if missing:
        raise FileProblem(path, f"has no column {', '.join(missing)}", f"it needs {', '.join(COLUMNS)}")
    table = []
    for number, row in enumerate(rows, 2):
        try:
            values = [float(row[name]) for name in COLUMNS]
        except (TypeError, ValueError):
            values = [0.0]
        if not all(np.isfinite(values)) or min(values) <= 0:
            raise FileProblem(path, f"line {number} has a value that is no positive number")
        table.append(values)
    columns = np.array(table).T
    return columns[0], columns[1], columns[2]
