"""The example plugins, built as wheels and installed into a fresh environment: they work and pass their own tests."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
Python = Callable[..., "subprocess.CompletedProcess[str]"]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def python(make_venv: Callable[[Path], Python], tmp_path_factory: pytest.TempPathFactory) -> Python:
    folder = tmp_path_factory.mktemp("examples")
    run = make_venv(folder)
    for example in (ROOT / "examples").iterdir():
        shutil.copytree(example, folder / example.name)
        wheel = ["-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index", "--no-build-isolation", "-w", "wheels"]
        run(*wheel, f"./{example.name}")
    wheels = sorted(str(path) for path in (folder / "wheels").glob("*.whl"))
    assert len(wheels) == 2
    run("-m", "pip", "install", "--quiet", "--no-index", *wheels)  # their dependencies are there already, or it fails
    return run


def test_they_are_commands_steps_and_schemes(python: Python) -> None:
    listing = json.loads(python("-m", "computekit", "plugins", "--json").stdout)
    states = {plugin["name"]: plugin["state"] for plugin in listing["plugins"]}
    assert (states["ternary"], states["histogram"]) == ("loaded", "loaded")
    [step] = [step for step in listing["steps"] if step["name"] == "ternary"]
    assert (step["takes"], step["gives"], step["version"]) == ("model", "model", "computekit-ternary 0.1.0")
    shown = python("-m", "computekit", "--help").stdout
    assert "  histogram " in shown
    assert "  ternary " in shown


@pytest.mark.parametrize("name", ["computekit-ternary", "computekit-histogram"])
def test_they_pass_their_own_tests(name: str, python: Python) -> None:
    result = python("-m", "pytest", "-q", "-p", "no:cacheprovider", name, check=False)
    assert result.returncode == 0, result.stdout


def test_the_record_names_the_plugin_of_a_scheme(python: Python) -> None:
    make = "from pathlib import Path; from computekit.testing import make_model; make_model(Path('model.pt'))"
    python("-c", make)
    python("-m", "computekit", "quantize", "--scheme", "ternary", "model.pt", "-o", "small.pt")
    folder = Path(python("-c", "import os; print(os.getcwd())").stdout.strip())
    plugins = json.loads((folder / "small.pt.record.json").read_text(encoding="utf-8"))["plugins"]
    named = {plugin["name"]: plugin for plugin in plugins}
    assert {"quantize", "ternary"} <= named.keys()
    assert named["ternary"]["version"] == "0.1.0"
    assert len(named["ternary"]["sha256"]) == 64


def test_the_tutorial_runs_as_written(make_venv: Callable[[Path], Python], tmp_path: Path) -> None:
    """Every file of docs/plugins/tutorial.md is written and every command run, in an environment of its own."""
    python = make_venv(tmp_path)
    folder = tmp_path / "tutorial"
    settings = {"PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0"}
    typed = python(str(ROOT / "scripts" / "tutorial.py"), str(folder), check=False, **settings)
    assert typed.returncode == 0, typed.stdout[-4000:] + typed.stderr[-4000:]
    table = (folder / "results" / "table.md").read_text(encoding="utf-8")
    assert "| ternary" in table
    assert "passed" in typed.stdout
