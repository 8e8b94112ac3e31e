"""Checks of what a plugin's hook returned, before anything relies on it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, get_args, get_type_hints

import click

from . import loading
from .loading import PluginRefused
from .verbs import Command, Step, clash

_VERB = re.compile(r"[a-z0-9][a-z0-9_-]*")


def listed(hook: str, kind: type, result: Any) -> Iterable[Any]:
    """A hook's result, if it is something that can hold several items."""
    if isinstance(result, (str, bytes, dict)) or not isinstance(result, Iterable):
        raise PluginRefused(f"{hook} returned {type(result).__name__}, not a list of {kind.__name__}")
    return result


def check(hook: str, kind: type, item: object) -> None:
    """Refuse an item of a hook's result that is not a ``kind`` with a usable name."""
    if not isinstance(item, kind):
        raise PluginRefused(f"{hook} returned a {type(item).__name__} where a {kind.__name__} belongs")
    name = getattr(item, "name", "-")
    if not name or not isinstance(name, str):
        raise PluginRefused(f"{hook} returned a {kind.__name__} without a name")
    fault = getattr(item, "fault", "")  # of a kind that a plugin declares, which knows what makes it unusable
    if fault:
        raise PluginRefused(f"{hook} returned a {kind.__name__} {name!r} that cannot be used: {fault}")
    if isinstance(item, (Command, Step)):
        _check_verb(item)


def returned(hook: Callable[..., Any]) -> type:
    """What the items of a hook's result are, by its annotation; object where that does not tell."""
    try:
        [kind] = get_args(get_type_hints(hook)["return"])
    except Exception:  # no annotation, or names that are there for type checkers only
        return object
    return kind if isinstance(kind, type) else object


def _check_verb(item: Command | Step) -> None:
    if not isinstance(item.command, click.Command):
        raise PluginRefused(f"{item.name!r} holds a {type(item.command).__name__}, not a click command")
    try:  # what --help is going to ask of it, for there it would hide all other commands
        item.command.get_short_help_str(limit=80).encode()
    except Exception as error:
        raise PluginRefused(f"{item.name!r} cannot tell its own help: {loading.describe(error)}") from error
    clashing = clash(item.command)
    if clashing:
        raise PluginRefused(f"command {item.name!r}: {clashing}")
    for word in (item.name, *(item.argv if isinstance(item, Step) else ())):
        if not _VERB.fullmatch(word):
            raise PluginRefused(f"{word!r} is no name for a command: use lower-case letters, digits and dashes")
    if isinstance(item, Step):
        for field, value, legal in (
            ("takes", item.takes, ("nothing", "model", "models", "records")),
            ("gives", item.gives, ("model", "record")),
        ):
            if value not in legal:
                raise PluginRefused(f"step {item.name!r}: {field} is {value!r}, not one of {', '.join(legal)}")
