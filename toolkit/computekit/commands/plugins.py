"""``computekit plugins``: what is installed, what each plugin brings, and what could not be loaded."""

from __future__ import annotations

import json
from typing import Any

import click

from .. import host, options, verbs
from ..errors import ComputekitError
from ..loading import Policy, parse_allowed
from .new import new


@click.group(invoke_without_command=True)
@click.option(
    "--allow", metavar="LIST",
    help="Show what COMPUTEKIT_ALLOW_PLUGINS=LIST lets in, and fail if something of it is missing.",
)  # fmt: skip
@options.as_json
@options.common
@click.pass_context
def plugins(ctx: click.Context, allow: str | None, as_json: bool) -> None:
    """List the plugins, what they bring, and what is wrong with them: for that every hook is called and every step
    imported.

    LIST names plugins or distributions, with or without a version: computekit,ternary==0.2. A pipeline has the same
    list as 'plugins' in its config.

    \b
    Example:
      computekit plugins
      computekit plugins --json
      computekit plugins --allow computekit,ternary==0.2
    """
    if ctx.invoked_subcommand is not None:
        return
    registry = host.current() if allow is None else host.Host.discover(Policy(parse_allowed(allow)))
    listing = describe(registry)
    if as_json:
        click.echo(json.dumps(listing, indent=2))
    else:
        _show(ctx, listing)
    missing = [failure for failure in registry.failures if not failure.loaded]
    if allow is not None and missing:
        named = "; ".join(f"{failure.name} ({failure.reason})" for failure in missing)
        raise ComputekitError(f"not all that is allowed is there: {named}")


def _show(ctx: click.Context, listing: dict[str, Any]) -> None:
    from tabulate import tabulate

    rows = [(p["name"], f"{p['distribution']} {p['version']}", p["state"], _brings(p)) for p in listing["plugins"]]
    headers = ["plugin", "distribution", "state", "brings"]
    click.echo(tabulate(rows, headers, tablefmt="simple", maxcolwidths=[None, None, None, 60]))
    formatter = ctx.make_formatter()
    remarks = [(p["name"], p["reason"]) for p in listing["plugins"] if p["reason"]]
    if remarks:
        with formatter.section("Remarks"):
            formatter.write_dl(remarks)
    names = {kind: listing[kind] for kind in ("steps", "architectures", "datasets")}
    names["model formats"] = listing["model_formats"]
    names |= {host.title(hook): items for hook, items in listing["extensions"].items()}
    with formatter.section("Names"):
        formatter.write_dl([(kind, ", ".join(item["name"] for item in items)) for kind, items in names.items()])
    click.echo("\n" + formatter.getvalue(), nl=False)


def _brings(plugin: dict[str, Any]) -> str:
    """Its commands by name, and the kinds of all else that it contributes."""
    shown = ("computekit_commands", "computekit_steps", "computekit_addhooks")
    kinds = [host.title(hook) for hook in plugin["hooks"] if hook not in shown]
    return "; ".join(", ".join(names) for names in (plugin["commands"], kinds) if names)


plugins.add_command(new)


def describe(registry: host.Host) -> dict[str, Any]:
    """The whole registry as plain data; pipelines read steps and their options from it."""
    commands = registry.commands
    registry.call_hooks()
    steps = []
    for step in sorted(registry.steps.values(), key=lambda step: step.name):
        with registry.guarding(step, f"step {step.name!r}"):
            steps.append(_step(step, registry))
    entries = [
        {
            "name": loaded.name,
            "distribution": loaded.distribution,
            "version": loaded.version,
            "state": "loaded",
            "reason": "; ".join(
                [f.reason for f in registry.failures if f.loaded and f.name == loaded.name]
                + [effect for owner, effect in registry.effects if owner is loaded]
                + [f"deprecated: {text}" for owner, text in registry.deprecations if owner is loaded]
            ),
            "commands": [name for name, command in commands.items() if registry.owner(command) is loaded],
            "hooks": sorted(caller.name for caller in registry.manager.get_hookcallers(loaded.plugin) or []),
        }
        for loaded in registry.plugins
    ]
    entries += [
        {
            "name": failure.name,
            "distribution": failure.distribution,
            "version": failure.version,
            "state": state,
            "reason": failure.reason,
            "commands": [],
            "hooks": [],
        }
        for state, failures in (("not loaded", registry.failures), ("not allowed", registry.skipped))
        for failure in failures
        if not failure.loaded
    ]
    return {
        "api_version": verbs.API_VERSION,
        "plugins": entries,
        "steps": steps,
        "architectures": [{"name": a.name, "summary": a.summary} for a in registry.architectures.values()],
        "datasets": [{"name": d.name, "summary": d.summary} for d in registry.datasets.values()],
        "model_formats": [{"name": f.name, "summary": f.summary} for f in registry.model_formats],
        "extensions": {
            hook: [{"name": name, "summary": getattr(item, "summary", "")} for name, item in items.items()]
            for hook, items in registry.extensions.items()
        },
    }


def _step(step: verbs.Step, registry: host.Host) -> dict[str, Any]:
    owner = registry.owner(step)
    return {
        "name": step.name,
        "argv": list(step.argv),
        "takes": step.takes,
        "gives": step.gives,
        "exclusive": step.exclusive,
        "keeps_kind": step.keeps_kind,
        "summary": step.command.get_short_help_str(limit=200),
        "version": f"{owner.distribution} {owner.version}" if owner else "",
        "options": [_option(p) for p in verbs.loaded(step.command).params if isinstance(p, click.Option)],
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
