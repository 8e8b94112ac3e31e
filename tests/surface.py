"""The public surface: every hook, contract and command-line option, as data that a golden file freezes.

    python -m tests.surface                          # show what differs from the golden file
    python -m tests.surface --update "What changed"  # accept it, with a line for the changelog

A change that plugin authors or scripts can notice needs a line under "Unreleased" in CHANGELOG.md; ``--update`` writes
both, and the test refuses one without the other.
"""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

import computekit
from computekit import contracts, verbs
from computekit.host import Host
from computekit.loading import FIRST_PARTY, Policy, parse_allowed

ROOT = Path(__file__).resolve().parents[1]
GOLDEN = ROOT / "tests" / "golden" / "surface.json"
CHANGELOG = ROOT / "CHANGELOG.md"


def surface() -> dict[str, Any]:
    """Everything that a plugin or a script can rely on."""
    host = Host.discover(Policy(parse_allowed(FIRST_PARTY)))
    return {
        "api_version": verbs.API_VERSION,
        "public_names": sorted(computekit.__all__),
        "hooks": {
            name: str(inspect.signature(getattr(caller.spec.namespace, name))).replace("'", "")
            for name, caller in sorted(vars(host.manager.hook).items())
            if not name.startswith("_") and caller.spec is not None
        },
        "contracts": {
            kind.__name__: [_field(field) for field in dataclasses.fields(kind)]
            for kind in (verbs.Command, verbs.Step, *_contracts(host))
        },
        "steps": {
            name: {"words": list(step.argv), "takes": step.takes, "gives": step.gives, "exclusive": step.exclusive}
            for name, step in sorted(host.steps.items())
        },
        "commands": dict(
            pair for name, entry in host.commands.items() for pair in _commands(f"computekit {name}", entry.command)
        ),
    }


def _contracts(host: Host) -> Iterator[type]:
    """The dataclasses of `contracts`, and those of the modules in which our plugins declare hooks."""
    callers = [caller for caller in vars(host.manager.hook).values() if getattr(caller, "spec", None) is not None]
    modules = {contracts, *(inspect.getmodule(caller.spec.function) for caller in callers)}
    for module in sorted(filter(None, modules), key=lambda module: module.__name__):
        for kind in vars(module).values():
            if dataclasses.is_dataclass(kind) and isinstance(kind, type) and kind.__module__ == module.__name__:
                yield kind


def _field(field: dataclasses.Field[Any]) -> str:
    has_default = field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
    return f"{field.name}: {field.type}" + (" = ..." if has_default else "")


def _commands(path: str, command: click.Command) -> list[tuple[str, list[str]]]:
    command = verbs.loaded(command)
    found = [(path, sorted(_parameter(parameter) for parameter in command.params))]
    if isinstance(command, click.Group):
        for name in sorted(command.commands):
            found += _commands(f"{path} {name}", command.commands[name])
    return found


def _parameter(parameter: click.Parameter) -> str:
    """``--seed INTEGER RANGE = 0``: names, type, choices and default, but not the help, which may improve freely."""
    names = "/".join([*parameter.opts, *parameter.secondary_opts])
    kind = parameter.type
    text = f"{names} [{'|'.join(map(str, kind.choices))}]" if isinstance(kind, click.Choice) else f"{names} {kind.name}"
    if isinstance(parameter, click.Option) and parameter.is_flag:
        text = names
    if parameter.required:
        text += " required"
    if parameter.nargs == -1 or getattr(parameter, "multiple", False):
        text += " ..."
    default = parameter.default
    if isinstance(default, (str, int, float)) and not isinstance(default, bool):
        text += f" = {default}"
    return text


def golden() -> dict[str, Any]:
    """What is frozen: ``surface`` and the ``changelog`` line that came with its last change."""
    loaded: dict[str, Any] = json.loads(GOLDEN.read_text(encoding="utf-8"))
    return loaded


def differences() -> list[str]:
    """What was removed from the frozen surface (-) and what was added to it (+)."""
    frozen, now = ({*_lines(data)} for data in (golden()["surface"], surface()))
    return sorted([f"- {line}" for line in frozen - now] + [f"+ {line}" for line in now - frozen], key=lambda x: x[2:])


def _lines(data: Any, path: str = "") -> Iterator[str]:
    """Every leaf with the way to it: ``commands: computekit quantize: --dry-run``."""
    if isinstance(data, dict):
        for key, value in data.items():
            yield from _lines(value, f"{path}: {key}" if path else key)
    elif isinstance(data, list):
        for value in data:
            yield from _lines(value, path)
    else:
        yield f"{path}: {data}"


def update(line: str) -> None:
    """Freeze the surface as it is, and put ``line`` under "Unreleased"."""
    document = {"changelog": line, "surface": surface()}
    GOLDEN.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    text = CHANGELOG.read_text(encoding="utf-8")
    if line not in " ".join(text.split()):
        head, _, tail = text.partition("### Added\n\n")
        CHANGELOG.write_text(f"{head}### Added\n\n- {line}\n{tail}", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--update", metavar="LINE", help="freeze the surface; LINE goes into the changelog")
    line = parser.parse_args().update
    if line:
        update(line)
        return
    changed = differences()
    print("\n".join(changed))
    sys.exit(1 if changed else 0)


if __name__ == "__main__":
    main()
