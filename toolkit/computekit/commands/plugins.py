"""``computekit plugins``: what is installed, what each plugin brings, and what could not be loaded."""

from __future__ import annotations

import json
from typing import Any

import click

from .. import contracts, host, options


@click.group(invoke_without_command=True)
@options.as_json
@options.common
@click.pass_context
def plugins(ctx: click.Context, as_json: bool) -> None:
    """List the plugins and what they bring.

    \b
    Example:
      computekit plugins
      computekit plugins --json
    """
    if ctx.invoked_subcommand is not None:
        return
    registry = host.current()
    listing = describe(registry)
    if as_json:
        click.echo(json.dumps(listing, indent=2))
        return
    from tabulate import tabulate

    rows = [
        (p["name"], f"{p['distribution']} {p['version']}", p["state"], ", ".join(p["commands"]), p["reason"])
        for p in listing["plugins"]
    ]
    click.echo(tabulate(rows, ["plugin", "distribution", "state", "commands", "reason"], tablefmt="simple"))
    for title in ("steps", "architectures", "datasets"):
        names = [item["name"] for item in listing[title]]
        click.echo(f"\n{title}: {', '.join(names)}")


def describe(registry: host.Host) -> dict[str, Any]:
    """The whole registry as plain data; pipelines read steps and their options from it."""
    commands = registry.commands
    entries = [
        {
            "name": p.name,
            "distribution": p.distribution,
            "version": p.version,
            "state": "loaded",
            "reason": "",
            "commands": [name for name in commands if registry.owners.get(name) is p],
            "hooks": sorted(caller.name for caller in registry.manager.get_hookcallers(p.plugin) or []),
        }
        for p in registry.plugins
    ]
    entries += [
        {
            "name": f.name,
            "distribution": f.distribution,
            "version": f.version,
            "state": "not loaded",
            "reason": f.reason,
            "commands": [],
            "hooks": [],
        }
        for f in registry.failures
    ]
    return {
        "api_version": contracts.API_VERSION,
        "plugins": entries,
        "steps": [_step(step, registry) for step in sorted(registry.steps.values(), key=lambda s: s.name)],
        "architectures": [{"name": a.name, "summary": a.summary} for a in registry.architectures.values()],
        "datasets": [{"name": d.name, "summary": d.summary} for d in registry.datasets.values()],
    }


def _step(step: contracts.Step, registry: host.Host) -> dict[str, Any]:
    owner = registry.owners.get(step.argv[0])
    return {
        "name": step.name,
        "argv": list(step.argv),
        "takes": step.takes,
        "gives": step.gives,
        "exclusive": step.exclusive,
        "summary": step.command.get_short_help_str(limit=200),
        "version": f"{owner.distribution} {owner.version}" if owner else "",
        "options": [_option(p) for p in step.command.params if isinstance(p, click.Option)],
    }


def _option(option: click.Option) -> dict[str, Any]:
    """One option as a pipeline sees it: its key in the config and how the command line spells it."""
    kind = option.type
    info: dict[str, Any] = {
        "key": max(option.opts, key=len).lstrip("-").replace("-", "_"),
        "flag": max(option.opts, key=len),
        "type": "boolean" if option.is_flag else _json_type(kind),
        "help": option.help or "",
        "required": option.required,
        "multiple": option.multiple,
    }
    if option.secondary_opts:
        info["off_flag"] = max(option.secondary_opts, key=len)
    if isinstance(kind, click.Choice):
        info["choices"] = list(kind.choices)
    if isinstance(kind, options.InputPath):
        info["holds"] = kind.holds
    default = option.default
    if isinstance(default, (str, int, float, bool)):
        info["default"] = default
    return info


def _json_type(kind: click.ParamType[Any]) -> str:
    if isinstance(kind, (click.IntRange, click.types.IntParamType)):
        return "integer"
    if isinstance(kind, (click.FloatRange, click.types.FloatParamType)):
        return "number"
    if isinstance(kind, options.Arguments):
        return "object"
    return "string"
