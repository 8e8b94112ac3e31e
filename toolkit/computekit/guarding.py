"""Keeping what goes wrong with a plugin to that plugin: errors become failures, and the process stays as it was."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout

import click

from . import loading
from .errors import CommandNotLoaded, ComputekitError
from .loading import Failure, LoadedPlugin, PluginRefused


class Guard:
    """Collects what goes wrong with plugins; ``strict`` raises it instead."""

    def __init__(self, strict: bool = False) -> None:
        self.strict = strict
        self.failures: list[Failure] = []
        self.effects: list[tuple[LoadedPlugin, str]] = []
        """What plugins did to the process while they were imported, or in a hook; put back where it can be."""

    @contextmanager
    def guarded(self, name: str, distribution: str, version: str, during: str = "") -> Iterator[None]:
        """Turn whatever a plugin throws, sys.exit included, into a `Failure`; ``during`` names a hook of it."""
        origin = f"plugin {distribution} {version}".rstrip()
        try:
            yield
        except KeyboardInterrupt as error:  # the user's: a plugin's own is another error once it was contained
            if distribution != loading.FIRST_PARTY:
                error.add_note(f"in {origin}")
            raise
        except BaseException as error:
            reason = loading.describe(error)
            if self.strict:
                if isinstance(error, ComputekitError) or not isinstance(error, Exception):
                    raise PluginRefused(f"{origin}: {reason}") from error
                error.add_note(f"in {origin}")
                raise
            if during and not isinstance(error, (PluginRefused, CommandNotLoaded)):
                reason = f"{during} failed: {reason}"
            if (name, reason) not in {(failure.name, failure.reason) for failure in self.failures}:
                self.failures.append(Failure(name, distribution, version, reason, error, loaded=bool(during)))

    @contextmanager
    def contained(self, loaded: LoadedPlugin, during: str) -> Iterator[None]:
        """Run a third party's code contained; what it prints goes to standard error."""
        if loaded.first_party:
            with redirect_stdout(sys.stderr):
                yield
            return
        from .containment import contained

        try:
            with contained() as containment:
                yield
        finally:
            effects = list(containment.effects)
            if containment.printed:
                click.echo(containment.printed.rstrip("\n"), err=True)
                effects.append("prints to standard output")
            effect = (loaded, f"in {during}, it {', '.join(effects)}")
            if effects and effect not in self.effects:
                self.effects.append(effect)
