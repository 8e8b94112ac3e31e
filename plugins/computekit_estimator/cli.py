"""The command group ``computekit estimator``. Wiring only."""

from __future__ import annotations

import click

from computekit.cli import DefaultGroup

from .count import count

_LAZY = {
    "train": "train:train", "infer": "serve:infer", "plan": "planning:plan", "scaling": "scale:scaling",
    "validate": "validate:validate", "calibrate": "calibrate:calibrate",
}  # fmt: skip
"""Subcommands that bring numpy, imported when one is asked for."""


@click.group(cls=DefaultGroup, default="count", lazy={name: f"{__package__}.{place}" for name, place in _LAZY.items()})
def estimator() -> None:
    """Estimate what a model costs to train and to serve, before anything runs.

    \b
    Example:
      computekit estimator model.pt
      computekit estimator count --layers 96 --hidden 12288
    """


estimator.add_command(count)
