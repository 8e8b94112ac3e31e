"""The command group ``computekit estimator``. Wiring only."""

from __future__ import annotations

import click

from computekit.cli import DefaultGroup

from .calibrate import calibrate
from .count import count
from .planning import plan
from .scale import scaling
from .serve import infer
from .train import train
from .validate import validate


@click.group(cls=DefaultGroup, default="count")
def estimator() -> None:
    """Estimate what a model costs to train and to serve, before anything runs.

    \b
    Example:
      computekit estimator model.pt
      computekit estimator count --layers 96 --hidden 12288
    """


for command in (count, train, infer, plan, scaling, validate, calibrate):
    estimator.add_command(command)
