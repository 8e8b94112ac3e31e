"""Errors that a user can act on.

Every error holds data and builds its one line in ``__str__``; `cli.RootGroup` prints that line to stderr and exits
with ``exit_code``. Anything else that escapes a command is a bug of ours and is reported as an internal error.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

_SHOWN = 20  # known names in one message


class ComputekitError(Exception):
    """Base of all errors that are printed as one line; ``exit_code`` is the process's exit status."""

    exit_code = 1


class FileProblem(ComputekitError):
    """A file cannot be used: which one, what is wrong, and what to do about it."""

    def __init__(self, path: str | Path, problem: str, hint: str = "") -> None:
        super().__init__(path, problem, hint)
        self.path, self.problem, self.hint = Path(path), problem, hint

    def __str__(self) -> str:
        return f"{self.path}: {self.problem}" + (f"; {self.hint}" if self.hint else "")


class UnknownName(ComputekitError):
    """A name that nothing answers to; the nearest known ones are suggested."""

    def __init__(self, kind: str, name: str, known: Iterable[str], hint: str = "") -> None:
        super().__init__(kind, name)
        self.kind, self.name, self.known, self.hint = kind, name, sorted(known), hint

    def __str__(self) -> str:
        near = nearest(self.name, self.known)
        if near:
            tail = f"did you mean {' or '.join(near)}?"
        elif self.known:
            more = f" and {len(self.known) - _SHOWN} more" if len(self.known) > _SHOWN else ""
            tail = f"known: {', '.join(self.known[:_SHOWN])}{more}"
        else:
            tail = "none is registered"
        return f"unknown {self.kind} {self.name!r}; {tail}" + (f" {self.hint}" if self.hint else "")


class AmbiguousName(ComputekitError):
    """A name that several things answer to."""

    def __init__(self, kind: str, name: str, meant: Iterable[str]) -> None:
        super().__init__(kind, name)
        self.kind, self.name, self.meant = kind, name, sorted(meant)

    def __str__(self) -> str:
        return f"{self.kind} {self.name!r} could be any of {', '.join(self.meant)}; say which"


class MissingExtra(ComputekitError):
    """An optional dependency is needed; ``extra`` is the pip extra that brings it."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(package, extra, purpose)
        self.package, self.extra, self.purpose = package, extra, purpose

    def __str__(self) -> str:
        return f"{self.purpose} needs {self.package}, which is not installed; pip install 'computekit[{self.extra}]'"


class PluginNotLoaded(ComputekitError):
    """A command whose plugin failed to load, or may not load."""

    def __init__(self, command: str, distribution: str, version: str, reason: str) -> None:
        super().__init__(command, distribution, version, reason)
        self.command, self.distribution, self.version, self.reason = command, distribution, version, reason

    def __str__(self) -> str:
        origin = f"{self.distribution} {self.version}".rstrip()
        return (
            f"command {self.command!r} is not available: plugin {origin} "
            f"is not loaded ({self.reason}); 'computekit plugins' lists what is"
        )


class CommandNotLoaded(ComputekitError):
    """A command whose own module fails to import."""

    def __init__(self, command: str, place: str, error: BaseException) -> None:
        super().__init__(command, place, error)
        self.command, self.place, self.error = command, place, error

    def __str__(self) -> str:
        reason = f"{type(self.error).__name__}: {self.error}"
        if isinstance(self.error, SystemExit):
            reason = f"it called sys.exit({self.error.code!r})"
        return f"command {self.command!r} cannot be loaded from {self.place} ({reason}); --debug shows where"


class StepFault(ComputekitError):
    """A step does not keep to its contract: a mistake of who wrote it, not of who runs it."""

    def __init__(self, step: str, fault: str) -> None:
        super().__init__(step, fault)
        self.step, self.fault = step, fault

    def __str__(self) -> str:
        return f"step {self.step!r} is at fault: {self.fault}"


class CatalogRowRefused(ComputekitError):
    """A hardware or price row that breaks a rule of the catalog."""

    def __init__(self, row: str, problem: str) -> None:
        super().__init__(row, problem)
        self.row, self.problem = row, problem

    def __str__(self) -> str:
        return f"catalog row {self.row!r}: {self.problem}"


class PluginDeprecation(FutureWarning):
    """A plugin uses a hook or an argument that will go away; the message names the replacement."""


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """Up to two known names that are close enough to ``name`` to be what was meant."""
    import difflib

    return difflib.get_close_matches(name, list(known), n=2, cutoff=0.6)
