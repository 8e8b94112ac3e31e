"""``computekit plugins new``: every kind is complete, and works once installed, with nothing else changed."""

from __future__ import annotations

import ast
import errno
import json
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from computekit.cli import main
from computekit.commands.new import KINDS, render

Python = Callable[..., "subprocess.CompletedProcess[str]"]


def new(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["plugins", "new", *words], prog_name="computekit")
    return result.exit_code, result.output


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_a_complete_distribution(kind: str) -> None:
    files = render("my-own", kind)
    project = tomllib.loads(files["pyproject.toml"])
    assert project["project"]["name"] == "computekit-my-own"
    assert project["project"]["entry-points"]["computekit"] == {"my-own": "computekit_my_own"}
    assert {
        "README.md", ".gitignore", ".github/workflows/test.yml", "src/computekit_my_own/py.typed",
        "tests/test_contract.py", "tests/test_plugin.py",
    } <= files.keys()  # fmt: skip
    for path, text in files.items():
        assert "@NAME@" not in text
        if path.endswith(".py"):
            tree = ast.parse(text)
            assert ast.get_docstring(tree), path
    assert 'plugin = "my-own"' in files["tests/test_contract.py"]


@pytest.mark.parametrize(
    "name", ["x", "with-some-dashes", "computekit-prefixed", "lambda", "a-name-of-thirty-two-characters"]
)
def test_code_is_formatted_and_sorted_for_any_name(name: str, tmp_path: Path) -> None:
    for kind in KINDS:
        folder = tmp_path / kind
        folder.mkdir()
        assert new(name, "--kind", kind, "--into", str(folder), "--quiet")[0] == 0
    ruff = [sys.executable, "-m", "ruff"]
    checked = subprocess.run(
        [*ruff, "check", "--isolated", "--select", "E,F,I,UP,B", "--line-length", "120", str(tmp_path)],
        capture_output=True, text=True,
    )  # fmt: skip
    assert checked.returncode == 0, checked.stdout
    formatted = subprocess.run(
        [*ruff, "format", "--isolated", "--line-length", "120", "--diff", str(tmp_path)], capture_output=True, text=True
    )
    assert formatted.returncode == 0, formatted.stdout


@pytest.mark.parametrize(
    ("words", "code", "complaint"),
    [
        (["Bad_Name"], 2, "no name for a plugin"),
        (["a--b"], 2, "no name for a plugin"),
        (["../x"], 2, "no name for a plugin"),
        (["3d"], 2, "a letter first"),
        (["My_Plugin"], 2, "did you mean my-plugin?"),
        (["Big Model 2"], 2, "did you mean big-model-2?"),
        (["ünïcode"], 2, "no name for a plugin"),
        (["n" * 33], 2, "at most 32 characters, not 33"),
        (["workflows"], 1, "there is a module computekit_workflows already"),
        (["true"], 2, "'true' is no name for a plugin: a pipeline's config would read it as no string"),
        (["quantize"], 1, "the name 'quantize' is taken"),
        (["table"], 1, "the name 'table' is taken"),
        (["resnet", "--kind", "architecture"], 1, "the architecture 'resnet' exists already"),
        (["digits", "--kind", "dataset"], 1, "the dataset 'digits' exists already"),
        (["safetensors", "--kind", "format"], 1, "the format 'safetensors' exists already"),
        (["int8", "--kind", "scheme"], 1, "the scheme 'int8' exists already"),
        (["openvino", "--kind", "backend"], 1, "the backend 'openvino' exists already"),
        (["taylor", "--kind", "criterion"], 1, "the criterion 'taylor' exists already"),
        (["mse", "--kind", "loss"], 1, "the loss 'mse' exists already"),
        (["server", "--kind", "scenario"], 1, "the scenario 'server' exists already"),
        (["mine", "--kind", "stpe"], 2, "stpe"),
        (["mine", "--into", "nowhere"], 1, "the folder nowhere does not exist"),
        ([], 2, "Missing argument"),
    ],
)
def test_refusals_write_nothing(
    words: list[str], code: int, complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    exit_code, output = new(*words)
    assert exit_code == code
    assert complaint in output
    assert list(tmp_path.iterdir()) == []


def test_an_existing_folder_is_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "computekit-mine"
    folder.mkdir()
    exit_code, output = new("mine", "--into", str(tmp_path))
    assert exit_code == 1
    assert "exists already" in output
    assert list(folder.iterdir()) == []


def test_a_dead_link_in_its_place_is_told(tmp_path: Path) -> None:
    (tmp_path / "computekit-mine").symlink_to("nowhere")
    exit_code, output = new("mine", "--into", str(tmp_path))
    assert (exit_code, "exists already" in output) == (1, True)


def test_what_to_type_next_can_be_typed(tmp_path: Path) -> None:
    folder = tmp_path / "a folder"
    folder.mkdir()
    shown = new("mine", "--into", str(folder))[1]
    assert f"pip install -e '{folder}/computekit-mine[test]' && pytest '{folder}/computekit-mine'" in shown


def test_help_says_what_each_kind_is() -> None:
    shown = new("--help")[1]
    for kind, about in KINDS.items():
        assert f"{kind:<13} {about.summary}" in shown


def test_a_full_disk_leaves_no_half_of_a_distribution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    exit_code, output = new("mine", "--into", str(tmp_path))
    assert exit_code == 1
    assert "the disk is full" in output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_new_plugin_works_and_passes_its_own_tests(
    kind: str, make_venv: Callable[[Path], Python], tmp_path: Path
) -> None:
    python = make_venv(tmp_path)
    python("-m", "computekit", "plugins", "new", "mine", "--kind", kind, "--quiet")
    project = tmp_path / "computekit-mine"
    python("-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "-e", str(project))
    listing = json.loads(python("-m", "computekit", "plugins", "--json").stdout)
    [mine] = [plugin for plugin in listing["plugins"] if plugin["name"] == "mine"]
    assert (mine["state"], mine["reason"], mine["distribution"]) == ("loaded", "", "computekit-mine")
    if kind in ("step", "command"):
        assert "mine " in python("-m", "computekit", "--help").stdout
    tests = python("-m", "pytest", "-q", "-p", "no:cacheprovider", str(project), check=False)
    assert tests.returncode == 0, tests.stdout
    assert "empty parameter set" not in python("-m", "pytest", "-rs", "--co", "-q", str(project)).stdout
