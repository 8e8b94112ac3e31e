"""``computekit doctor``: versions, devices, extras and plugins, and how to mend what is missing."""

from __future__ import annotations

import importlib.metadata
import json
import platform
from typing import Any

import click

from .. import host, loading, options, verbs

REQUIRED = ("click", "pluggy", "tabulate", "torch", "numpy", "safetensors", "pydantic", "snakemake", "psutil", "tqdm",
            "jsonschema")  # fmt: skip
EXTRAS = {
    "hf": ("transformers", "gguf", "accelerate", "compressed-tensors"),
    "onnx": ("onnx", "onnxscript", "onnxruntime"),
    "openvino": ("openvino", "nncf"),
    "prune": ("torch-pruning",),
    "ao": ("torchao",),
    "data": ("scikit-learn", "mlxtend"),
    "gpu": ("nvidia-ml-py",),
    "report": ("matplotlib",),
    "loadgen": ("mlcommons-loadgen",),
    "slurm": ("snakemake-executor-plugin-slurm",),
    "kubernetes": ("snakemake-executor-plugin-kubernetes",),
    "testing": ("pytest",),
}


SLOW_MS = 50
"""A plugin whose import takes longer is named; a light one takes 1 to 3 ms."""


@click.command()
@options.as_json
@options.common
def doctor(as_json: bool) -> None:
    """Show versions, devices, extras and plugins, and how to mend what is missing. Of each plugin: how long its import
    takes, and what is wrong with it; for that every hook is called and every command imported.

    \b
    Example:
      computekit doctor
    """
    findings = examine()
    if as_json:
        click.echo(json.dumps(findings, indent=2))
        return
    click.echo(f"computekit {findings['computekit']}, Python {findings['python']}, {findings['system']}")
    click.echo("\nRequired")
    for name, version in findings["required"].items():
        click.echo(f"  {name:<14} {version or 'MISSING: pip install ' + name}")
    click.echo("\nDevices")
    for device in findings["devices"]:
        click.echo(f"  {device['id']:<14} {device['name']}")
    click.echo("\nExtras")
    for extra, entry in findings["extras"].items():
        state = ", ".join(f"{n} {v}" for n, v in entry["packages"].items() if v)
        if entry["missing"]:
            state = f"missing {', '.join(entry['missing'])}: pip install 'computekit[{extra}]'"
        click.echo(f"  {extra:<14} {state}")
    click.echo("\nPlugins")
    for plugin in findings["plugins"]:
        click.echo(f"  {plugin['name']:<14} {plugin['distribution']} {plugin['version']}: {plugin['state']}")


def examine() -> dict[str, Any]:
    """Everything that ``doctor`` reports, as plain data."""
    from .. import __version__, devices

    registry = host.current()
    registry.call_hooks()
    offered: list[verbs.Command | verbs.Step] = [*registry.commands.values(), *registry.steps.values()]
    for item in offered:
        with registry.guarding(item, "a command"):
            verbs.loaded(item.command)
    try:
        import torch

        found = [{"id": d, "name": devices.describe(torch.device(d)).name} for d in devices.available()]
    except ImportError:
        found = []
    return {
        "computekit": __version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "required": {name: version(name) for name in REQUIRED},
        "devices": found,
        "extras": {extra: _extra(packages) for extra, packages in EXTRAS.items()},
        "plugins": [_plugin(loaded, registry) for loaded in registry.plugins]
        + [
            {"name": f.name, "distribution": f.distribution, "version": f.version, "state": f"not loaded: {f.reason}"}
            for f in [*registry.failures, *registry.skipped]
            if not f.loaded
        ],
    }


def _plugin(loaded: loading.LoadedPlugin, registry: host.Host) -> dict[str, Any]:
    """What its import cost and what is wrong with it."""
    import_ms = round(1e3 * loaded.import_s, 1)
    remarks = [f"{import_ms} ms to import"]
    if loaded.heavy:
        remarks.append(f"SLOW: it imports {', '.join(loaded.heavy)}; move that import into the function that needs it")
    elif import_ms > SLOW_MS:
        remarks.append("SLOW: it does too much when it is imported")
    if loaded.printed:
        remarks.append(f"prints {len(loaded.printed)} characters when it is imported")
    remarks += [effect for owner, effect in registry.effects if owner is loaded]
    remarks += [f"DEPRECATED: {text}" for owner, text in registry.deprecations if owner is loaded]
    remarks += [f"PROBLEM: {f.reason}" for f in registry.failures if f.loaded and f.name == loaded.name]
    return {
        "name": loaded.name,
        "distribution": loaded.distribution,
        "version": loaded.version,
        "import_ms": import_ms,
        "state": "; ".join(remarks),
    }


def version(distribution: str) -> str | None:
    """Installed version of a distribution, or None."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _extra(packages: tuple[str, ...]) -> dict[str, Any]:
    versions = {name: version(name) for name in packages}
    return {"packages": versions, "missing": [name for name, found in versions.items() if found is None]}
