"""scripts/install.sh where something is missing: one line that says what to install, before anything is written."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "install.sh"


def install(python: Path | str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", str(SCRIPT), str(python), ".venv"], cwd=folder, capture_output=True, text=True, check=False
    )


def stub(folder: Path, body: str) -> Path:
    """An executable that stands in for a Python."""
    python = folder / "python3"
    python.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
    python.chmod(0o755)
    return python


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (None, "no missing-python on the PATH; install it"),
        (
            'case "$1" in --version) echo Python 3.9.2;; *) exit 1;; esac',
            "Python 3.9.2 is too old; Python 3.11 or newer",
        ),
        ('case "$*" in *"import venv"*) exit 1;; esac', "apt-get install python3-venv"),
    ],
)
def test_what_is_missing_is_one_line(tmp_path: Path, body: str | None, message: str) -> None:
    done = install(stub(tmp_path, body) if body else "missing-python", tmp_path)
    assert done.returncode == 1
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / ".venv").exists()
