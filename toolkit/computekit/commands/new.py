"""``computekit plugins new``: a complete plugin distribution to start from."""

from __future__ import annotations

import importlib.util
import re
import shlex
from pathlib import Path
from typing import NamedTuple

import click

from .. import __version__, files, host, options
from ..errors import ComputekitError, FileProblem


class Kind(NamedTuple):
    """What a template makes: a sentence about it, how it is used, the hook that names it, the plugin it extends."""

    summary: str
    usage: str
    hook: str = ""
    needs: str = ""


KINDS = {
    "step": Kind("Disturbs the weights of a model with noise.", "computekit @NAME@ model.pt"),
    "command": Kind("Lists the largest tensors of a model.", "computekit @NAME@ model.pt"),
    "architecture": Kind(
        "A model architecture.", "computekit train --arch @NAME@ --data digits -o model.pt", "computekit_architectures"
    ),
    "dataset": Kind("A data set.", "computekit train --arch mlp --data @NAME@ -o model.pt", "computekit_datasets"),
    "format": Kind(
        "Reads and writes models as numpy .npz archives.",
        "computekit quantize --int8 model.npz",
        "computekit_model_formats",
    ),
    "scheme": Kind(
        "A quantization scheme.",
        "computekit quantize --scheme @NAME@ model.pt",
        "computekit_quantization_schemes",
        "quantize",
    ),
    "backend": Kind(
        "Runs quantized models.",
        "computekit quantize --int8 --backend @NAME@ model.pt",
        "computekit_quantization_backends",
        "quantize",
    ),
    "criterion": Kind(
        "A pruning criterion.", "computekit prune --criterion @NAME@ model.pt", "computekit_prune_criteria", "prune"
    ),
    "loss": Kind(
        "A distillation loss.",
        "computekit distill model.pt --student mlp --loss @NAME@",
        "computekit_distillation_losses",
        "distill",
    ),
    "scenario": Kind(
        "A load scenario.",
        "computekit benchmark scenario model.pt --scenario @NAME@",
        "computekit_benchmark_scenarios",
        "benchmark",
    ),
    "catalog": Kind("Hardware and prices for the catalog.", "computekit plugins"),
    "columns": Kind("Columns for tables of results.", "computekit table *.record.json"),
}

_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_LONGEST = 32
"""Characters of a name; with more of them the code of the templates would not fit its lines."""
_YAML_WORDS = ("true", "false", "null", "yes", "no", "on", "off")


_HELP = """Write a complete plugin distribution, computekit-NAME, that works as it is: module, types, tests, CI.

\b
Kinds:
{kinds}

\b
Example:
  computekit plugins new ternary --kind step
  pip install -e 'computekit-ternary[test]'
  computekit ternary model.pt
  pytest computekit-ternary
""".format(kinds="\n".join(f"  {kind:<13} {about.summary}" for kind, about in KINDS.items()))


@click.command(help=_HELP, short_help="Write a complete plugin distribution to start from.")
@click.argument("name")
@click.option("--kind", type=click.Choice(list(KINDS)), default="step", show_default=True, help="What it adds.")
@click.option(
    "--into", type=click.Path(path_type=Path, file_okay=False), default=Path(),
    help="Folder to make it in.  [default: the current one]",
)  # fmt: skip
@options.common
@click.pass_context
def new(ctx: click.Context, name: str, kind: str, into: Path) -> None:
    name = name.removeprefix("computekit-")
    folder = into / f"computekit-{name}"
    check(name, kind, folder)
    with files.atomic(folder) as temporary:
        for path, text in render(name, kind).items():
            target = temporary / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
    if not ctx.meta.get("computekit.quiet", False):
        editable, tests = shlex.quote(f"{folder}[test]"), shlex.quote(str(folder))
        click.echo(f"wrote {folder}; next: pip install -e {editable} && pytest {tests}", err=True)
    click.echo(str(folder))


def check(name: str, kind: str, folder: Path) -> None:
    """Refuse a name that would clash, before anything is written."""
    if not _NAME.fullmatch(name):
        likely = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
        hint = f"; did you mean {likely}?" if _NAME.fullmatch(likely) else ""
        raise click.UsageError(
            f"{name!r} is no name for a plugin: a letter first, then lower-case letters, digits and single dashes{hint}"
        )
    if len(name) > _LONGEST:
        raise click.UsageError(f"a name for a plugin has at most {_LONGEST} characters, not {len(name)}")
    if name in _YAML_WORDS:
        raise click.UsageError(f"{name!r} is no name for a plugin: a pipeline's config would read it as no string")
    registry = host.current()
    taken = {loaded.name for loaded in registry.plugins} | registry.commands.keys() | registry.steps.keys()
    if name in taken:
        raise ComputekitError(f"the name {name!r} is taken; 'computekit plugins' lists what is installed")
    hook = KINDS[kind].hook
    items = registry.collect(hook, object) if hasattr(registry.manager.hook, hook) else []
    if name in {getattr(item, "name", None) for item in items}:
        raise ComputekitError(f"the {kind} {name!r} exists already; give another name")
    if importlib.util.find_spec(module_name(name)) is not None:
        raise ComputekitError(f"the name {name!r} is taken: there is a module {module_name(name)} already")
    if folder.exists() or folder.is_symlink():
        raise FileProblem(folder, "exists already", "give another name or --into another folder")


def module_name(name: str) -> str:
    """The module of plugin ``name``."""
    return f"computekit_{name.replace('-', '_')}"


def render(name: str, kind: str, date: str = "") -> dict[str, str]:
    """The files of a distribution, by their path in it; a price in them was seen on ``date``, today by default."""
    import datetime
    from importlib.resources import files as package_files

    about = KINDS[kind]
    module = module_name(name)
    values = {
        "NAME": name,
        "MODULE": module,
        "KEY": name.replace("-", "_"),
        "CLASS": "".join(part.title() for part in name.split("-")),
        "SUMMARY": about.summary,
        "USAGE": about.usage.replace("@NAME@", name),
        "NEEDS": f'    needs = ("{about.needs}",)' if about.needs else "",
        "HOST": __version__,
        "DATE": date or datetime.datetime.now(datetime.UTC).date().isoformat(),
    }
    sources = {
        "pyproject.toml": "common/pyproject.toml.in",
        "README.md": "common/README.md.in",
        ".gitignore": "common/gitignore.in",
        ".github/workflows/test.yml": "common/test.yml.in",
        f"src/{module}/__init__.py": f"kinds/{kind}.py.in",
        "tests/conftest.py": "common/conftest.py.in",
        "tests/test_contract.py": "common/test_contract.py.in",
        "tests/test_plugin.py": f"kinds/{kind}_test.py.in",
    }
    if kind == "format":
        sources[f"src/{module}/files.py"] = "kinds/format_files.py.in"
    templates = package_files("computekit") / "data" / "templates"
    rendered = {path: (templates / source).read_text(encoding="utf-8") for path, source in sources.items()}
    rendered[f"src/{module}/py.typed"] = ""
    return {path: _fill(text, values).rstrip("\n") + "\n" if text else "" for path, text in rendered.items()}


def _fill(text: str, values: dict[str, str]) -> str:
    return re.sub(r"@([A-Z]+)@", lambda match: values[match[1]], text)
