"""The text of docs/plugins/api.md: what plugins import from computekit, from its own signatures and docstrings."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator
from typing import Any

import click

import computekit
from computekit import options, testing

SECTIONS = {
    "A run of a step": ["StepRun"],
    "Records": ["Quantity", "Row", "Record"],
    "Model files": ["open_model", "rewrite", "ModelFile", "TensorInfo", "Writer"],
    "Running a model": ["load_module", "load_into", "save_module", "ArchRef"],
    "Data": ["load_data", "Data", "Split"],
    "Commands": ["LazyCommand"],
    "Errors": ["ComputekitError", "FileProblem", "UnknownName", "MissingExtra"],
    "Hooks": ["implements"],
}
"""Public names in the order of the page; the contracts that hooks return are in hooks.md."""


def reference() -> str:
    """The whole page."""
    parts = [
        "# What plugins import\n\n"
        "Generated from the code by `scripts/plugin_docs.py`; do not edit. Names are those of `computekit`; what\n"
        "hooks return is in [hooks.md](hooks.md). All of it is typed.\n"
    ]
    for title, names in SECTIONS.items():
        parts.append(f"## {title}\n")
        parts += [_entry(name, getattr(computekit, name)) for name in names]
    parts += [
        "`computekit.hookimpl` and `computekit.hookspec` are pluggy's markers; `implements` is the typed first one.\n"
    ]
    parts += ["## Options\n", _options()]
    parts += ["## Tests\n"]
    parts += [_entry(name, getattr(testing, name), "computekit.testing.") for name in ("run_command", "make_model")]
    return "\n".join(parts)


def _entry(name: str, value: Any, prefix: str = "") -> str:
    text = f"### {prefix}{name}\n\n"
    if not inspect.isclass(value):
        return text + f"```python\n{_signature(name, value)}\n```\n\n{_prose(value)}\n"
    if "__init__" in vars(value) and not dataclasses.is_dataclass(value) and value is not computekit.StepRun:
        text += f"```python\n{_signature(name, value)}\n```\n\n"
    text += f"{_prose(value)}\n"
    rows = [f"| `{_cell(signature)}` | {_cell(about)} |" for signature, about in _members(value)]
    return text + ("\n".join(["", "| member | |", "|---|---|", *rows, ""]) if rows else "")


def _members(kind: type) -> Iterator[tuple[str, str]]:
    """Fields, properties and methods of one class, each with the first sentence about it."""
    fields = getattr(kind, "model_fields", {})
    for name, field in fields.items():
        yield f"{name}: {inspect.get_annotations(kind)[name]}", field.description or ""
    for data_field in dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ():
        default = "" if data_field.default is dataclasses.MISSING else f" = {data_field.default!r}"
        yield f"{data_field.name}: {data_field.type}{default}", ""
    for name, member in vars(kind).items():
        if name.startswith(("_", "model_")) or name in fields:
            continue
        function = getattr(member, "fget", None) or getattr(member, "func", None)
        if function is not None:
            yield f"{name}: {inspect.get_annotations(function).get('return', '')}", _first(function)
        elif inspect.isfunction(member) or isinstance(member, classmethod):
            plain = member.__func__ if isinstance(member, classmethod) else member
            yield _signature(name, plain), _first(plain)


def _signature(name: str, function: Any) -> str:
    """As it is written in the source: annotations without quotes, defaults with them."""
    signature = inspect.signature(function)
    shown: list[str] = []
    for parameter in signature.parameters.values():
        if parameter.name in ("self", "cls"):
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in shown:
            shown.append("*")
        text = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "") + parameter.name
        text += f": {parameter.annotation}" if parameter.annotation is not parameter.empty else ""
        shown.append(text + (f" = {parameter.default!r}" if parameter.default is not parameter.empty else ""))
    returned = signature.return_annotation
    arrow = "" if returned in (signature.empty, None, "None") else f" -> {returned}"
    return f"{name}({', '.join(shown)}){arrow}"


def _prose(value: Any) -> str:
    text = inspect.getdoc(value) or ""
    prose, _, example = text.partition("::\n")
    prose = re.sub(r"``(.+?)``", r"`\1`", prose.strip(), flags=re.DOTALL)
    prose = re.sub(r"^    (?=\w)", "- ", prose.replace("Raises:\n", "Raises:\n\n"), flags=re.MULTILINE)
    return f"{prose}:\n\n```python\n{inspect.cleandoc(example)}\n```" if example else prose


def _first(function: Any) -> str:
    """The first paragraph of a docstring, as one line of a table."""
    paragraph = (inspect.getdoc(function) or "").split("\n\n")[0]
    return re.sub(r"``(.+?)``", r"`\1`", " ".join(paragraph.split()))


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _options() -> str:
    """Every decorator of `computekit.options`, with what it adds."""
    rows = []
    for name, value in vars(options).items():
        if name.startswith("_") or inspect.isclass(value):
            continue
        if name in ("batch_size", "data", "arch"):
            decorator, shown = value(), f"options.{name}()"
        elif getattr(value, "__module__", "") == "click.decorators":
            decorator, shown = value, f"options.{name}"
        else:
            continue
        function = decorator(lambda: None)
        for parameter in reversed(function.__click_params__):
            spelled = ", ".join(parameter.opts) if isinstance(parameter, click.Option) else parameter.make_metavar(_CTX)
            rows.append(f"| `{shown}` | `{spelled}` | {getattr(parameter, 'help', '') or ''} |")
    kinds = [
        f"| `{name}` | {_first(kind)} |"
        for name, kind in vars(options).items()
        if inspect.isclass(kind) and issubclass(kind, click.ParamType) and kind.__module__ == options.__name__
    ]
    head = (
        "`computekit.options` defines each option once, as a decorator. `@options.step` adds those of a step and\n"
        "hands the function its [`StepRun`](#steprun); `@options.common` is `--quiet` and `--debug`.\n\n"
    )
    table = "\n".join(["| decorator | adds | |", "|---|---|---|", *rows])
    return head + table + "\n\nTypes for options of your own:\n\n" + "\n".join(["| type | |", "|---|---|", *kinds, ""])


_CTX = click.Context(click.Command("any"))
