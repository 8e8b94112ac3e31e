"""Plugins and a later computekit: what is written for this version runs there, and what needs that one says so here.

The later computekit is this one, with an argument more in hooks of its own and of plugins and with a higher API
version, built and installed as a distribution of its own.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
Python = Callable[..., "subprocess.CompletedProcess[str]"]

GROWN = {
    "toolkit/computekit/hookspecs.py": (
        "computekit_commands", "computekit_steps", "computekit_columns", "computekit_datasets",
    ),
    "plugins/computekit_quantize/schemes.py": ("computekit_quantization_schemes",),
    "plugins/computekit_distill/losses.py": ("computekit_distillation_losses",),
    "plugins/computekit_prune/criteria.py": ("computekit_prune_criteria",),
    "plugins/computekit_benchmark/scenarios.py": ("computekit_benchmark_scenarios",),
}  # fmt: skip
"""Hooks that have the argument ``theme`` in the later computekit."""

NEWER_PLUGIN = '''
"""A plugin that uses what only the later computekit passes."""

import click

import computekit

@computekit.hookimpl
def computekit_commands(theme):
    @click.command(__name__.removeprefix("computekit_"))
    def themed() -> None:
        """Say the theme."""
        click.echo(theme)
    return [computekit.Command(themed)]
'''

PIPELINE = """
data: digits
threads: 1
steps:
  train: {arch: mlp, epochs: 1}
  scheme: {step: quantize, scheme: ternary}
  ternary: {}
variants:
  baseline: [train]
  scheme: [train, scheme]
  step: [train, ternary]
"""

SNAKEFILE = """
from importlib.resources import files
configfile: "config.yaml"
include: str(files("computekit_workflows") / "pipeline.smk")
rule all:
    default_target: True
    input: PLAN.targets
"""

pytestmark = pytest.mark.slow


def replace_once(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1, f"{path.name}: {old}"
    path.write_text(text.replace(old, new), encoding="utf-8")


def write_newer_host(folder: Path) -> Path:
    """The source of computekit 9.0, API version 2, whose hooks in `GROWN` have an argument more."""
    for name in ("toolkit", "plugins", "workflows"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(ROOT / name, folder)
    for path, hooks in GROWN.items():
        for hook in hooks:
            replace_once(folder / path, f"\ndef {hook}() -> Iterable[", f"\ndef {hook}(theme: str) -> Iterable[")
    host = folder / "toolkit" / "computekit"
    replace_once(
        host / "host.py", "(**arguments)\n", "(**{name: 'dark' for name in caller.spec.argnames}, **arguments)\n"
    )
    replace_once(host / "verbs.py", "API_VERSION = 1\n", "API_VERSION = 2\n")
    replace_once(host / "__init__.py", '__version__ = "0.1.0"', '__version__ = "9.0"')
    return folder


@pytest.fixture(scope="module")
def wheels(make_venv: Callable[[Path], Python], tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """By name: the example plugin as it is, the later computekit, and a plugin that needs it, declared and not."""
    folder = tmp_path_factory.mktemp("wheels")
    python = make_venv(folder)
    sources = {"ternary": folder / "ternary", "newer": write_newer_host(folder / "newer")}
    shutil.copytree(ROOT / "examples" / "computekit-ternary", sources["ternary"])
    for name, api in (("declared", "COMPUTEKIT_API = 2\n"), ("undeclared", "")):
        sources[name] = folder / name
        shutil.copytree(ROOT / "tests" / "distributions" / "good", sources[name])
        (sources[name] / "computekit_good.py").rename(sources[name] / f"computekit_{name}.py")
        (sources[name] / f"computekit_{name}.py").write_text(NEWER_PLUGIN + api, encoding="utf-8")
        project = sources[name] / "pyproject.toml"
        project.write_text(project.read_text(encoding="utf-8").replace("good", name), encoding="utf-8")
    wheel = ["-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
    for name, source in sources.items():
        python(*wheel, "-w", f"wheels/{name}", str(source))
    return {name: str(next((folder / "wheels" / name).glob("*.whl"))) for name in sources}


def environment(make_venv: Callable[[Path], Python], folder: Path, *wheels: str) -> Python:
    python = make_venv(folder)
    python("-m", "pip", "install", "--quiet", "--no-deps", "--no-index", *wheels)
    return python


@pytest.fixture(scope="module")
def newer(
    make_venv: Callable[[Path], Python], wheels: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Python:
    """An environment with the later computekit, the example plugin and the plugins that need it."""
    return environment(make_venv, tmp_path_factory.mktemp("newer"), *wheels.values())


def test_the_later_host_is_another_one(newer: Python) -> None:
    assert newer("-m", "computekit", "--version").stdout == "computekit, version 9.0\n"
    listing = json.loads(newer("-m", "computekit", "plugins", "--json").stdout)
    assert listing["api_version"] == 2


def test_an_unchanged_plugin_is_listed_without_complaint(newer: Python) -> None:
    shown = newer("-m", "computekit", "--help")
    assert "  ternary " in shown.stdout
    assert "not loaded" not in shown.stdout
    listing = json.loads(newer("-m", "computekit", "plugins", "--json").stdout)
    [ternary] = [plugin for plugin in listing["plugins"] if plugin["name"] == "ternary"]
    assert (ternary["state"], ternary["reason"]) == ("loaded", "")
    assert set(ternary["hooks"]) == {"computekit_steps", "computekit_columns", "computekit_quantization_schemes"}


def test_an_unchanged_plugin_runs_as_command_and_in_a_pipeline(newer: Python) -> None:
    folder = Path(newer("-c", "import os; print(os.getcwd())").stdout.strip())
    newer("-c", "from pathlib import Path; from computekit.testing import make_model; make_model(Path('model.pt'))")
    newer("-m", "computekit", "ternary", "model.pt", "-o", "small.pt", "--quiet")
    record = json.loads((folder / "small.pt.record.json").read_text(encoding="utf-8"))
    assert record["versions"]["computekit"] == "9.0"
    assert "zeros" in newer("-m", "computekit", "table", "small.pt.record.json").stdout
    (folder / "config.yaml").write_text(PIPELINE, encoding="utf-8")
    (folder / "Snakefile").write_text(SNAKEFILE, encoding="utf-8")
    newer("-m", "snakemake", "--cores", "1", "--quiet")
    table = (folder / "results" / "table.md").read_text(encoding="utf-8")
    assert "| step" in table
    assert "| scheme" in table
    assert "zeros" in table


def test_an_unchanged_plugin_passes_its_own_tests(newer: Python) -> None:
    tests = ROOT / "examples" / "computekit-ternary" / "tests"
    result = newer("-m", "pytest", "-q", "-p", "no:cacheprovider", str(tests), check=False)
    assert result.returncode == 0, result.stdout


def test_the_new_argument_arrives(newer: Python) -> None:
    for name in ("declared", "undeclared"):
        assert newer("-m", "computekit", name).stdout == "dark\n"


def test_what_needs_the_later_host_says_so_on_this_one(
    make_venv: Callable[[Path], Python], wheels: dict[str, str], tmp_path: Path
) -> None:
    older = environment(make_venv, tmp_path, wheels["ternary"], wheels["declared"], wheels["undeclared"])
    shown = older("-m", "computekit", "--help").stdout
    assert "  ternary " in shown.partition("Plugins not loaded:")[0]
    for name, reason in (
        ("declared", "needs a newer computekit: plugin API 2, this one has 1"),
        ("undeclared", "needs a newer computekit: computekit_commands has no argument 'theme' here"),
    ):
        failed = older("-m", "computekit", name, check=False)
        assert (failed.returncode, failed.stdout) == (1, "")
        assert failed.stderr.count("\n") == 1
        assert f"plugin computekit-{name} 1.0 is not loaded ({reason}" in failed.stderr
