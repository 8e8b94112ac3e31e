"""Every kind of bad plugin, installed for real beside a good one: each is named, and none stops the others."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Python = Callable[..., "subprocess.CompletedProcess[str]"]

DISTRIBUTIONS = Path(__file__).parents[1] / "distributions"
NOT_LOADED = ("broken", "cancels", "exits", "generates", "impatient", "interrupts", "mistyped", "newarg", "recurses",
              "toonew", "tooold")  # fmt: skip
NAMES = sorted(path.name for path in DISTRIBUTIONS.iterdir())

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def python(make_venv: Callable[[Path], Python], tmp_path_factory: pytest.TempPathFactory) -> Python:
    """An environment in which all of them are installed, from wheels."""
    folder = tmp_path_factory.mktemp("installed")
    run = make_venv(folder)
    shutil.copytree(DISTRIBUTIONS, folder / "sources")
    sources = [f"./sources/{name}" for name in NAMES]
    run("-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation", *sources)
    return run


def test_help_lists_good_and_bad(python: Python) -> None:
    shown = python("-m", "computekit", "--help")
    complaints = ["a complaint", "{ raw", "{ child", "{ late", "{ bye"]  # of complains; of a hook of shouts; of parting
    assert shown.stderr.splitlines()[:5] == complaints
    assert shown.stderr.splitlines()[-1] == "RuntimeError: last words"
    good, _, bad = shown.stdout.partition("Plugins not loaded:")
    assert "  good " in good
    assert "  own " in good
    assert "  still-there " in good
    assert "  train " in good
    for name in NOT_LOADED:
        assert f"  {name} " in bad, name


def test_the_good_one_works(python: Python) -> None:
    assert python("-m", "computekit", "good").stdout == "good\n"
    assert python("-m", "computekit", "meddles").stdout == "True\n"
    assert python("-m", "computekit", "table", "--help").stdout.startswith("Usage: computekit table")


def test_every_reason_is_told_with_distribution_and_version(python: Python) -> None:
    listed = json.loads(python("-m", "computekit", "plugins", "--json").stdout)["plugins"]
    reasons = {p["name"]: p["reason"] for p in listed if p["distribution"] == f"computekit-{p['name']}"}
    assert sorted(reasons) == NAMES
    assert reasons["good"] == reasons["slow"] == reasons["loud"] == ""
    for name, reason in {
        "broken": "ModuleNotFoundError: No module named 'not_there_at_all'",
        "cancels": "CancelledError",
        "complains": "when imported, it writes to standard error",
        "exits": "it called sys.exit(7)",
        "generates": "GeneratorExit",
        "impatient": "it asks for other plugins while it is being imported",
        "interrupts": "it raised KeyboardInterrupt",
        "lingers": "when imported, it leaves a thread running",
        "meddles": "in computekit_commands, it changes the working folder, changes environment variables HOME, MEDDLED",
        "parting": "when imported, it registers an exit handler",
        "recurses": "RecursionError: maximum recursion depth exceeded",
        "shouts": "in computekit_commands, it prints to standard output",
        "mistyped": "unknown hook 'computekit_comands', did you mean 'computekit_commands'?",
        "newarg": "needs a newer computekit: computekit_commands has no argument",
        "toonew": "needs a newer computekit: plugin API 99",
        "tooold": "is too old for this computekit",
        "raises": "computekit_datasets failed: RuntimeError: the disk with the data is not mounted",
        "rival": "command 'good' is already provided by computekit-good 1.0; the one of computekit-rival 1.0",
    }.items():
        assert reason in reasons[name]
    assert {p["version"] for p in listed if p["name"] in NAMES} == {"1.0"}


def test_doctor_names_the_slow_and_the_loud(python: Python) -> None:
    states = {p["name"]: p for p in json.loads(python("-m", "computekit", "doctor", "--json").stdout)["plugins"]}
    assert states["slow"]["import_ms"] >= 200
    assert "SLOW" in states["slow"]["state"]
    assert "SLOW" not in states["good"]["state"]
    assert "prints 2 characters" in states["loud"]["state"]
    assert "prints 20 characters" in states["shouts"]["state"]
    text = python("-m", "computekit", "doctor").stdout
    assert f"{states['slow']['name']} " in text
    assert " ms to import; SLOW" in text


def test_running_a_bad_one_says_why_on_one_line(python: Python) -> None:
    for name in NOT_LOADED:
        failed = python("-m", "computekit", name, check=False)
        assert failed.returncode == 1
        assert failed.stdout == ""
        [line] = [line for line in failed.stderr.splitlines() if line.startswith("Error: ")]
        assert f"plugin computekit-{name} 1.0 is not loaded" in line


def test_only_allowed_plugins_run(python: Python) -> None:
    """A pipeline that trusts one plugin does not even import the others."""
    shown = python("-m", "computekit", "--help", COMPUTEKIT_ALLOW_PLUGINS="good==1.0,train").stdout
    assert "  good " in shown
    assert "  train " in shown
    assert "  quantize " not in shown
    assert "not loaded" not in shown
    refused = python("-m", "computekit", "good", COMPUTEKIT_ALLOW_PLUGINS="good==2.0", check=False)
    assert refused.returncode == 1
    assert "version 1.0 is not the allowed one, 2.0" in refused.stderr
