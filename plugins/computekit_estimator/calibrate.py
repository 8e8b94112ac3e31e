"""``computekit estimator calibrate``: a few constants of the model fitted to the user's own runs."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from computekit import ComputekitError, FileProblem, StepRun, options

from .constants import CONSTANTS, Constants
from .count import Putter
from .errors import CannotPredict

if TYPE_CHECKING:
    from .runs import Run

STEPS = ("sustained", "memory", "network")
"""What is fitted, most important first: the rate of products, of memory-bound kernels, of the network."""


def apply(factors: dict[str, float], base: Constants = CONSTANTS) -> Constants:
    """``base`` with its rates multiplied; shares stay at most 1."""
    fields = {
        "sustained": ("sustained_until_2022", "sustained_since_2022"),
        "memory": ("memory_until_2022", "memory_since_2022", "stream"),
        "network": ("network", "node_link"),
    }
    changed = {
        field: min(getattr(base, field) * factor, 1.0) for name, factor in factors.items() for field in fields[name]
    }
    return replace(base, **changed)


def fit(runs: list[Run], names: tuple[str, ...]) -> dict[str, float]:
    """Factors that bring the predictions closest to ``runs``: damped Gauss-Newton on log errors, with a weak prior.

    The prior (a factor of 1 within 30 %, one standard deviation against 5 % of a run) keeps what the runs do not
    determine where published runs put it.
    """
    import numpy as np

    def residuals(x: Any) -> Any:
        constants = apply(dict(zip(names, np.exp(x), strict=True)))
        return np.array([*[log_error(run, constants) / 0.05 for run in runs], *(x / 0.3)])

    x = np.zeros(len(names))
    now = residuals(x)
    for _ in range(8):
        slope = np.stack([(residuals(x + step) - now) / 1e-3 for step in 1e-3 * np.eye(len(names))], axis=1)
        move, *_ = np.linalg.lstsq(slope, -now, rcond=None)
        move = np.clip(move, -0.3, 0.3)
        then = residuals(x + move)
        if not then @ then < now @ now * (1 - 1e-6):
            break
        x, now = x + move, then
    return {name: float(np.exp(value)) for name, value in zip(names, x, strict=True)}


def log_error(run: Run, constants: Constants) -> float:
    """log(predicted / published)."""
    import math

    from .predict import predict

    return math.log(predict(run, constants) / run.value)


def load(path: Path) -> Constants:
    """The constants of a record that this command wrote; for ``--calibration``."""
    from computekit import records

    record = records.load(path)
    values = record.details.get("constants")
    if record.step != "estimator calibrate" or not isinstance(values, dict):
        raise FileProblem(path, "is no calibration", "make one with: computekit estimator calibrate RUNS.csv -o FILE")
    return Constants(**values)


calibration = click.option(
    "--calibration", type=options.InputPath("calibration"), help="Record of estimator calibrate: your own constants."
)


@click.command()
@click.argument("runs_file", metavar="RUNS", type=options.InputPath("runs"))
@options.step
def calibrate(run: StepRun, runs_file: Path) -> None:
    """Fit two or three constants to measured runs of your own and show the leave-one-out error.

    RUNS is a CSV with the columns of the published runs (id, kind, layers, hidden, ..., value, unit). With six or
    more runs three constants are fitted: the rates of products, memory and network; with fewer two. Each run is also
    predicted from a fit of all the others: that error is what to expect of the next run.

    \b
    Example:
      computekit estimator calibrate myruns.csv -o calibration.json
      computekit estimator train --layers 32 --hidden 4096 --device-name A100-SXM4-80GB --calibration calibration.json
    """
    import math
    import statistics

    from . import runs as published

    run.input(runs_file)
    usable = []
    for entry in published.load(runs_file):
        try:
            log_error(entry, CONSTANTS)
            usable.append(entry)
        except (ComputekitError, ValueError) as error:
            run.note(f"left out {entry.id}: {error}")
    if len(usable) < 3:
        raise CannotPredict(f"{runs_file}: {len(usable)} runs can be used, at least 3 are needed" + _first(run.notes))
    names = STEPS if len(usable) >= 6 else STEPS[:2]
    factors = fit(usable, names)
    constants = apply(factors)
    put = Putter(run.row(run.label or runs_file.stem))
    for name, factor in factors.items():
        put(f"{name}_factor", factor, "", "fitted rate over the shipped one")
    errors: dict[str, list[float]] = {"before": [], "after": [], "leave_one_out": []}
    for i, entry in enumerate(usable):
        others = apply(fit(usable[:i] + usable[i + 1 :], names))
        for key, used in (("before", CONSTANTS), ("after", constants), ("leave_one_out", others)):
            errors[key].append(abs(math.exp(log_error(entry, used)) - 1))
    medians = {key: statistics.median(values) for key, values in errors.items()}
    for key, median in medians.items():
        put(f"median_error_{key}", median, "", f"of {len(usable)} runs")
    if medians["leave_one_out"] > medians["before"]:
        errs = f"{medians['before']:.1%} against {medians['leave_one_out']:.1%}"
        told = f"the shipped constants predict runs that were not fitted better ({errs}): are all of one machine?"
        run.note(told)
        run.say(told)
    run.details["constants"] = asdict(constants)
    run.details["errors"] = [
        {"id": entry.id, **{key: values[i] for key, values in errors.items()}} for i, entry in enumerate(usable)
    ]


def _first(notes: list[str]) -> str:
    return f"; {notes[0]}" if notes else ""
