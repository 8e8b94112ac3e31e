"""The installed steps and their options, as ``computekit plugins --json`` tells them; checking and spelling options."""

from __future__ import annotations

import difflib
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

SET_BY_PIPELINE = frozenset({"output", "json", "quiet", "debug", "label"})
"""Options that a config cannot set: the pipeline decides where results go and what they are called."""


class ConfigError(Exception):
    """The config asks for something that cannot be; one line that names the key and what to do."""


@dataclass(frozen=True)
class Option:
    """One option of a step. ``holds`` is "model" or "record" where the value is such a file."""

    key: str
    flag: str
    type: str = "string"
    off_flag: str | None = None
    required: bool = False
    multiple: bool = False
    choices: tuple[str, ...] = ()
    holds: str | None = None


@dataclass(frozen=True)
class Step:
    """A step that a plugin provides; ``version`` names the plugin's distribution and version.

    A model that comes out is a ``.pt`` file, unless the step ``keeps_kind``: then it is of the kind that went in.
    """

    name: str
    argv: tuple[str, ...]
    takes: str
    gives: str
    exclusive: bool
    keeps_kind: bool
    version: str
    options: Mapping[str, Option]


@dataclass(frozen=True)
class Registry:
    """Every installed step by name, computekit's own version, and why plugins that are missing did not load."""

    version: str
    steps: Mapping[str, Step]
    failures: Mapping[str, str]

    def step(self, name: str, where: str) -> Step:
        """The step called ``name``; raises ConfigError with the nearest name, or why its plugin did not load."""
        if name in self.steps:
            return self.steps[name]
        if name in self.failures:
            raise ConfigError(f"{where}: step {name!r} is not available: {self.failures[name]}")
        raise ConfigError(f"{where}: {unknown('step', name, self.steps)}")


def allow(plugins: object) -> None:
    """Let this process and its jobs load exactly ``plugins``, if that is a list; a job on a cluster comes here too."""
    if isinstance(plugins, list):
        os.environ["COMPUTEKIT_ALLOW_PLUGINS"] = ",".join(str(plugin) for plugin in plugins)


def installed() -> Registry:
    """Ask the computekit of this Python, once."""
    command = [sys.executable, "-m", "computekit", "plugins", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ConfigError(f"'computekit plugins --json' failed: {done.stderr.strip() or done.returncode}")
    return parse(json.loads(done.stdout))


def parse(listing: Mapping[str, Any]) -> Registry:
    """The registry in what ``computekit plugins --json`` printed."""
    plugins = listing["plugins"]
    return Registry(
        version=next(f"{p['distribution']} {p['version']}" for p in plugins if p["name"] == "computekit"),
        steps={item["name"]: _step(item) for item in listing["steps"]},
        failures={p["name"]: p["reason"] for p in plugins if p["state"] != "loaded"},
    )


def _step(item: Mapping[str, Any]) -> Step:
    options = [
        Option(
            key=o["key"],
            flag=o["flag"],
            type=o["type"],
            off_flag=o.get("off_flag"),
            required=o["required"],
            multiple=o["multiple"],
            choices=tuple(str(choice) for choice in o.get("choices", ())),
            holds=o.get("holds"),
        )
        for o in item["options"]
        if o["key"] not in SET_BY_PIPELINE
    ]
    return Step(
        name=item["name"],
        argv=tuple(item["argv"]),
        takes=item["takes"],
        gives=item["gives"],
        exclusive=item["exclusive"],
        keeps_kind=item["keeps_kind"],
        version=item["version"],
        options={option.key: option for option in options},
    )


def check_options(step: Step, options: Mapping[str, Any], where: str) -> None:
    """Raise ConfigError for an option that ``step`` does not have or a value of the wrong kind."""
    for key, value in options.items():
        if key in SET_BY_PIPELINE:
            raise ConfigError(f"{where}: {key!r} is set by the pipeline; remove it")
        if key not in step.options:
            raise ConfigError(f"{where}: step {step.name!r} has no option {key!r}; {suggestion(key, step.options)}")
        option = step.options[key]
        if value is None:
            continue
        for item in value if option.multiple and isinstance(value, list) else [value]:
            problem = _problem(option, item)
            if problem:
                raise ConfigError(f"{where}.{key}: {problem}")


def check_complete(step: Step, options: Mapping[str, Any], where: str) -> None:
    """Raise ConfigError if ``options`` lack one that ``step`` cannot do without."""
    missing = [o.key for o in step.options.values() if o.required and options.get(o.key) is None]
    if missing:
        raise ConfigError(f"{where}: step {step.name!r} needs {' and '.join(missing)}")


def _problem(option: Option, value: Any) -> str | None:
    """What is wrong with ``value``, or None."""
    if option.type == "boolean":
        return None if isinstance(value, bool) else f"{value!r} is not true or false"
    if option.type == "object":
        return None if isinstance(value, Mapping) else f"{value!r} is not a mapping such as {{depth: 2}}"
    if isinstance(value, bool):
        return f"{value!r} is not a {option.type}; YAML reads on, off, yes and no as truth values, put it in quotes"
    if isinstance(value, list) and option.type == "string" and not option.choices:
        return next((f"{item!r} cannot stand in a list" for item in value if isinstance(item, (Mapping, list))), None)
    if isinstance(value, (Mapping, list)):
        return f"takes one {option.type}, not {value!r}"
    if option.type == "integer" and not _reads_as(int, value):
        return f"{value!r} is not a whole number"
    if option.type == "number" and not _reads_as(float, value):
        return f"{value!r} is not a number"
    if option.choices and str(value) not in option.choices:
        return f"{value!r} is not a choice; {suggestion(str(value), option.choices)}"
    return None


def _reads_as(kind: type, value: Any) -> bool:
    """Whether the command line could read ``value`` as ``kind``: YAML takes 1e-3 for a string, click for a number."""
    try:
        kind(str(value))
    except ValueError:
        return False
    return True


def command_line(step: Step, options: Mapping[str, Any]) -> list[str]:
    """``options`` as arguments of ``step``, in the order of its ``--help``, so that the spelling never varies."""
    arguments: list[str] = []
    for key, option in step.options.items():
        value = options.get(key)
        if value is None:
            continue
        if option.type == "boolean":
            spelled = option.flag if value else option.off_flag
            arguments += [spelled] if spelled else []
            continue
        for item in value if option.multiple and isinstance(value, list) else [value]:
            arguments += [option.flag, _spelled(option, item)]
    return arguments


def _spelled(option: Option, value: Any) -> str:
    """One value as one word: JSON for a mapping; a list, such as a shape, with commas."""
    if option.type == "object":
        return json.dumps(value, sort_keys=True)
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def nearest(name: str, known: Iterable[str]) -> str:
    """The known name that was probably meant, or an empty string."""
    return next(iter(difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)), "")


def suggestion(name: str, known: Iterable[str]) -> str:
    """What to write instead of ``name``: the nearest known name, or all of them."""
    names = sorted(known)
    near = nearest(name, names)
    return f"did you mean {near}?" if near else f"known: {', '.join(names) or 'none'}"


def unknown(kind: str, name: str, known: Iterable[str]) -> str:
    """The sentence about a name that nothing answers to."""
    return f"unknown {kind} {name!r}; {suggestion(name, known)}"
