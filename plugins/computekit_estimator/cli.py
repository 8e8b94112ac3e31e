"""The command group ``computekit estimator``. Wiring only."""

from __future__ import annotations

import click

from computekit import LazyCommand
from computekit.cli import DefaultGroup

_COMMANDS = {
    "count": ("count", "Count parameters, FLOPs and bytes of a model: a file, an architecture or dimensions."),
    "train": ("train", "Estimate time, memory, energy and GPU hours of training."),
    "infer": ("serve", "Estimate prefill and decode latency, throughput and memory of serving."),
    "plan": ("planning", "Find the fastest or cheapest parallel layout that fits in memory."),
    "scaling": ("scale", "Split a compute budget between parameters and tokens."),
    "validate": ("validate", "Recompute every published run and print its error."),
    "calibrate": ("calibrate", "Fit two or three constants to measured runs of your own."),
}
"""Module and summary of each subcommand; what needs numpy is imported when it is asked for."""


@click.group(cls=DefaultGroup, default="count")
def estimator() -> None:
    """Estimate what a model costs to train and to serve, before anything runs.

    \b
    Example:
      computekit estimator model.pt
      computekit estimator count --layers 96 --hidden 12288
    """


for _name, (_module, _summary) in _COMMANDS.items():
    estimator.add_command(LazyCommand(_name, f"{__package__}.{_module}:{_name}", _summary))
