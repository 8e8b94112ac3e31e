"""What a plugin adds to the command line: commands, and steps, which are commands that pipelines can run.

Apart from the other contracts because every start of ``computekit`` needs these two and none of the rest.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from dataclasses import dataclass
from typing import Literal

import click

from .errors import CommandNotLoaded

API_VERSION = 1
"""Version of the plugin interface; it grows when a hook or a contract changes. Plugins may declare a range."""


class LazyCommand(click.Command):
    """A command whose module is imported when it runs, or shows its own help.

    ``place`` is its ``module:attribute``; ``summary`` is its line in the lists of commands. Every start of
    ``computekit`` imports all plugins, so one that is more than a small module should put its commands this way.
    """

    def __init__(self, name: str, place: str, summary: str) -> None:
        super().__init__(name, short_help=summary)
        self.place = place


def loaded(command: click.Command) -> click.Command:
    """The command itself where ``command`` is a `LazyCommand`; raises CommandNotLoaded if that fails."""
    if not isinstance(command, LazyCommand):
        return command
    module, _, attribute = command.place.partition(":")
    try:
        with contextlib.redirect_stdout(sys.stderr):  # what a module prints would spoil output that scripts read
            found = getattr(importlib.import_module(module), attribute)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # sys.exit included
        raise CommandNotLoaded(command.name or "", command.place, error) from error
    if not isinstance(found, click.Command):
        raise CommandNotLoaded(command.name or "", command.place, TypeError("not a click command"))
    clashing = clash(found)
    if clashing:
        raise CommandNotLoaded(command.name or "", command.place, TypeError(clashing))
    return found


def clash(command: click.Command) -> str:
    """Which option or parameter of ``command`` is there twice, in words; click would let the last one win.

    Several flags with values of their own may set one parameter: that is how click spells a choice.
    """
    options = [name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)]
    names = [p.name for p in command.params if not (isinstance(p, click.Option) and p.is_flag and not p.is_bool_flag)]
    for what, words in (("option", options), ("parameter", names)):
        for word in words:
            if words.count(word) > 1:
                common = "; is it one of those that @options.step and @options.common bring?"
                return f"{what} {word!r} is there twice{common}"
    return ""


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
    itself in a pipeline, so that nothing disturbs its timing. A step that gives a model gives a ``.pt`` file, unless it
    ``keeps_kind``: then a folder gives a folder, a safetensors file a safetensors file.
    """

    name: str
    command: click.Command
    takes: Literal["nothing", "model", "models", "records"]
    gives: Literal["model", "record"]
    exclusive: bool = False
    words: tuple[str, ...] = ()
    keeps_kind: bool = False

    @property
    def argv(self) -> tuple[str, ...]:
        """The command words that start the step."""
        return self.words or (self.name,)
