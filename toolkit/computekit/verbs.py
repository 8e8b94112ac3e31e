"""What a plugin adds to the command line: commands, and steps, which are commands that pipelines can run.

Apart from the other contracts because every start of ``computekit`` needs these two and none of the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import click

API_VERSION = 1
"""Version of the plugin interface; it grows when a hook or a contract changes. Plugins may declare a range."""


@dataclass(frozen=True)
class Command:
    """A subcommand of ``computekit``. Its name is the click command's name."""

    command: click.Command

    @property
    def name(self) -> str:
        return self.command.name or ""


@dataclass(frozen=True)
class Step:
    """A subcommand that turns files into a file and leaves a record; pipelines call it by ``name``.

    ``takes`` says what the positional arguments are: nothing (``train``), one model, several models, or records.
    ``gives`` says what ``--output`` is. ``words`` are the command words after ``computekit`` (default: the name), for
    a step that is a subcommand of a group, e.g. ``("benchmark", "models")``. An ``exclusive`` step has the machine for
    itself in a pipeline, so that nothing disturbs its timing.
    """

    name: str
    command: click.Command
    takes: Literal["nothing", "model", "models", "records"]
    gives: Literal["model", "record"]
    exclusive: bool = False
    words: tuple[str, ...] = ()

    @property
    def argv(self) -> tuple[str, ...]:
        """The command words that start the step."""
        return self.words or (self.name,)
