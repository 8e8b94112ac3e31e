"""What the result is held against: the data, the metric, the most that may be lost, and the time to search."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from computekit import UnknownName, options

if TYPE_CHECKING:
    from computekit.text import Window

METRICS = ("accuracy", "perplexity", "cosine")
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


class Duration(click.ParamType[float]):
    """A time above zero in seconds: ``30s``, ``5m``, ``1.5h``, or a plain number of seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", str(value).strip())
        seconds = float(found[1]) * _UNITS[found[2] or "s"] if found else 0.0
        if seconds <= 0:
            self.fail(f"{value!r} is not a time above zero, such as 30s, 5m or 1h", param, ctx)
        return seconds


_SIZES = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}


@dataclass(frozen=True)
class Room:
    """How many bytes there may be: ``bytes``, or ``share`` of what there was."""

    bytes: int | None
    share: float | None

    def of(self, before: int) -> int:
        """In bytes, of an input of ``before``."""
        return int(before * self.share) if self.share is not None else self.bytes or 0


class RoomType(click.ParamType[Room]):
    """A size such as ``110MB`` (decimal; ``MiB`` is binary), or a share of the input's bytes below 1."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Room:
        found = re.fullmatch(r"(\d*\.?\d+)\s*([kmg]?i?b?)", str(value).strip().lower())
        number, unit = (float(found[1]), found[2]) if found else (0.0, "")
        if not unit and 0 < number < 1:
            return Room(None, number)
        if unit not in _SIZES or number * _SIZES[unit] < 1:
            self.fail(f"{value!r} is neither a size, such as 110MB, nor a share of the bytes, such as 0.2", param, ctx)
        return Room(int(number * _SIZES[unit]), None)


@dataclass(frozen=True)
class Goal:
    """What the options ask for.

    ``metric`` is one of `METRICS`, ``module:callable``, or None for what suits the data's task. ``max_drop`` is in the
    metric's own unit of loss; ``objective`` is what is made small within it. ``max_bytes`` is what the output may take,
    filled with what is good for the model. ``time_budget`` is in seconds, for the
    whole run; None searches to the end.
    """

    data: str | None
    window: Window | None
    batch_size: int
    metric: str | None
    metric_direction: str | None
    max_drop: float | None
    max_bytes: Room | None
    objective: str | None
    time_budget: float | None
    sensitivity: bool

    def __post_init__(self) -> None:
        wanting = [
            name
            for name, given in (
                ("--sensitivity", self.sensitivity),
                ("--max-drop", self.max_drop is not None),
                ("--metric", self.metric),
            )
            if given
        ]
        if self.data is None and wanting:
            raise click.UsageError(f"{' and '.join(wanting)} {'needs' if len(wanting) == 1 else 'need'} --data")
        if self.max_bytes is not None and self.max_drop is not None:
            raise click.UsageError(
                "--max-bytes asks for the best of a size, --max-drop for the smallest of a quality: choose one"
            )
        if self.metric and ":" not in self.metric and self.metric not in METRICS:
            raise UnknownName("metric", self.metric, METRICS, "(or give package.module:callable)")
        if self.metric_direction and ":" not in (self.metric or ""):
            raise click.UsageError("--metric-direction is for a --metric of your own, module:callable")

    def check_searched(self) -> None:
        """click.UsageError for options of a search that nothing asks for."""
        if self.max_drop is None and (self.objective or (self.time_budget and not self.sensitivity)):
            raise click.UsageError("--objective and --time-budget belong to the search: say --max-drop too")

    def objective_for(self, activations: str) -> str:
        """What is made small: what was asked for, else latency where layers compute in integers, else bytes."""
        return self.objective or ("bytes" if activations == "float" else "latency")


goal_options = options.gathered(
    "goal",
    Goal,
    options.data(help="Measure the metric on this data set's test split before and after."),
    options.window,
    options.batch_size(256),
    click.option("--metric", metavar="NAME", help="accuracy, perplexity, cosine (of the outputs to the original "
                 "model's; needs no targets), or module:callable.  [default: by the data's task]"),
    click.option("--metric-direction", type=click.Choice(["higher", "lower"]),
                 help="Which way a metric of your own is better.  [default: higher]"),
    click.option("--max-drop", type=options.Number(at_least=0), 
                 help="Most that may be lost on the validation split: points of accuracy or of cosine (1 is 0.01), "
                      "percent of perplexity, or in the values of your own metric. Layers that cost most get a milder "
                      "treatment; exit 3 if that is not enough. Needs --data."),
    click.option("--max-bytes", type=RoomType(), metavar="SIZE",
                 help="Most that the output may take, e.g. 110MB, or 0.2 of the input. Weights start as asked for; "
                      "the room that is left goes to milder treatments where they matter most, as --calibration or "
                      "--data shows, else the errors of the weights."),
    click.option("--objective", type=click.Choice(["bytes", "latency"]),
                 help="What to make small within --max-drop.  [default: latency with --activations, else bytes]"),
    click.option("--time-budget", type=Duration(), 
                 help="Time for the whole run, e.g. 5m; what is best by then is saved.  [default: search to the end]"),
    click.option("--sensitivity", is_flag=True,
                 help="Measure what each layer alone costs in the metric, and saves in bytes and ms. Needs --data."),
    section="Data, metric and search",
)  # fmt: skip
"""Options that become one argument ``goal``."""
