"""The config of a pipeline: checked against ``config.schema.json``, with its defaults filled in."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator, ValidationError

from .registry import ConfigError, unknown


@dataclass(frozen=True)
class Use:
    """A named use of a step: which one, with which options, and (``of``) what goes in if not the model before."""

    name: str
    step: str
    options: Mapping[str, Any]
    of: tuple[str, ...] | None = None

    def but(self, overrides: Mapping[str, Any]) -> Use:
        """The same use with some options changed."""
        return Use(self.name, self.step, {**self.options, **overrides}, self.of)


@dataclass(frozen=True)
class Variant:
    """A model to compare: the file it starts from, if any, and the steps that lead to it."""

    name: str
    start: str | None
    uses: tuple[Use, ...]


@dataclass(frozen=True)
class Table:
    """How the results are shown; ``columns`` and ``sort`` name quantities."""

    columns: tuple[str, ...] | None
    sort: str | None
    formats: tuple[str, ...]


@dataclass(frozen=True)
class Config:
    """A whole pipeline. ``common`` are options for every step that has them and does not set them itself."""

    results: str
    common: Mapping[str, Any]
    steps: Mapping[str, Use]
    variants: Mapping[str, Variant]
    measure: Mapping[str, Use]
    table: Table


def schema() -> dict[str, Any]:
    """The JSON schema of a config: a description and, where a key may be left out, a default for each."""
    loaded: dict[str, Any] = json.loads(Path(__file__).with_name("config.schema.json").read_text(encoding="utf-8"))
    return loaded


def read(raw: Mapping[str, Any]) -> Config:
    """Check ``raw`` (parsed YAML) and fill in defaults; raises ConfigError, one line, for the first thing wrong."""
    rules = schema()
    errors = sorted(Draft202012Validator(rules).iter_errors(raw), key=lambda error: [str(part) for part in error.path])
    if errors:
        raise ConfigError(_sentence(errors[0]))
    whole = _with_defaults(raw, rules)
    steps = {name: _use(name, options) for name, options in whole["steps"].items()}
    table = whole["table"]
    return Config(
        results=whole["results"].rstrip("/") or "/",
        common={key: whole[key] for key in ("seed", "device", "threads", "data") if whole[key] is not None},
        steps=steps,
        variants={name: _variant(name, items, steps) for name, items in whole["variants"].items()},
        measure={name: _use(name, options) for name, options in whole["measure"].items()},
        table=Table(
            columns=tuple(table["columns"]) if table["columns"] else None,
            sort=table["sort"],
            formats=tuple(table["formats"]),
        ),
    )


def _with_defaults(value: Mapping[str, Any], rules: Mapping[str, Any]) -> dict[str, Any]:
    filled = dict(value)
    for key, rule in rules.get("properties", {}).items():
        if "default" in rule:
            filled.setdefault(key, rule["default"])
        if isinstance(filled.get(key), dict) and "properties" in rule:
            filled[key] = _with_defaults(filled[key], rule)
    return filled


def _use(name: str, raw: Mapping[str, Any] | None) -> Use:
    options = dict(raw or {})
    step = options.pop("step", name)
    of = options.pop("of", None)
    return Use(name, step, options, (of,) if isinstance(of, str) else tuple(of) if of else None)


def _variant(name: str, items: list[str | dict[str, Any]], steps: Mapping[str, Use]) -> Variant:
    where = f"variants.{name}"
    start: str | None = None
    uses: list[Use] = []
    for position, item in enumerate(items):
        key, overrides = (item, {}) if isinstance(item, str) else next(iter(item.items()))
        if key == "model" and not isinstance(item, str):
            if position > 0:
                raise ConfigError(f"{where}: 'model' can only be the first item")
            if not isinstance(overrides, str) or not overrides:
                raise ConfigError(f"{where}: 'model' takes the path of a model file, not {overrides!r}")
            start = overrides
            continue
        if key not in steps:
            raise ConfigError(f"{where}: {unknown('step', key, steps)} (steps are defined under 'steps')")
        if not isinstance(overrides, (dict, type(None))):
            raise ConfigError(f"{where}: {key} takes a mapping of options, not {overrides!r}")
        for fixed in ("step", "of"):
            if overrides and fixed in overrides:
                raise ConfigError(f"{where}: {key}: {fixed!r} can only be set under 'steps'")
        uses.append(steps[key].but(overrides or {}))
    return Variant(name, start, tuple(uses))


def _sentence(error: ValidationError) -> str:
    """One line for a person: where, what, and the nearest known key for a mistyped one."""
    where = ".".join(str(part) for part in error.absolute_path)
    prefix = f"{where}: " if where else ""
    if error.validator == "additionalProperties" and isinstance(error.instance, dict):
        known = error.schema.get("properties", {}) if isinstance(error.schema, dict) else {}
        extra = next(key for key in error.instance if key not in known)
        return prefix + unknown("key", str(extra), known)
    if error.validator == "required":
        return f"{prefix}{error.message.replace('is a required property', 'is missing')}"
    if "propertyNames" in error.absolute_schema_path:
        return f"{prefix}{error.instance!r} is no name; use letters, digits, '_', '-' and '+'"
    if error.validator == "type":
        wanted = error.message.rpartition(" is not of type ")[2].replace("'", "").replace(", ", " or ")
        return f"{prefix}{error.instance!r} is not of type {wanted}"
    return " ".join(f"{prefix}{error.message}".split())
