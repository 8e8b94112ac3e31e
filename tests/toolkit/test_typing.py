"""Types of plugins: ``mypy --strict`` catches a wrong hook, and accepts templates and examples."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from computekit.commands.new import KINDS, render

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "tests" / "typing"


@pytest.mark.slow
def test_a_type_checker_catches_wrong_hooks_and_accepts_right_ones(tmp_path: Path) -> None:
    """One run for all, with the repository's own cache: most of the time goes into torch's types."""
    modules = [str(path) for path in sorted((ROOT / "examples").glob("*/src/*/__init__.py"))]
    for kind in KINDS:
        for path, text in render(kind, kind).items():
            if path.startswith("src/") and path.endswith(".py"):
                module = tmp_path / path.removeprefix("src/")
                module.parent.mkdir(exist_ok=True)
                module.write_text(text, encoding="utf-8")
                modules.append(str(module))
    for sample in ("good.py", "bad.py"):
        modules.append(shutil.copy(SAMPLES / sample, tmp_path))
    result = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", "setup.cfg", *modules], capture_output=True, text=True, cwd=ROOT
    )
    errors = re.findall(r"^(\S+?):(\d+): error: .*", result.stdout, re.MULTILINE)
    lines = (SAMPLES / "bad.py").read_text(encoding="utf-8").splitlines()
    expected = {i for i, line in enumerate(lines, 1) if line.endswith("# error")}
    assert {int(line) for file, line in errors if Path(file).name == "bad.py"} == expected, result.stdout
    assert [error for error in errors if Path(error[0]).name != "bad.py"] == [], result.stdout
