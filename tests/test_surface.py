"""Hooks, contracts and the command line change only on purpose, with a line in the changelog."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_the_surface_is_frozen() -> None:
    """In a process of its own, so that no plugin that a test installed can show."""
    shown = subprocess.run([sys.executable, "-m", "tests.surface"], capture_output=True, text=True, cwd=ROOT)
    assert shown.returncode == 0, (
        f"{shown.stdout}{shown.stderr}\nif this is meant: python -m tests.surface --update 'line for the changelog'"
    )


def test_its_last_change_is_in_the_changelog() -> None:
    line = json.loads((ROOT / "tests" / "golden" / "surface.json").read_text(encoding="utf-8"))["changelog"]
    assert len(line) > 20
    assert line in " ".join((ROOT / "CHANGELOG.md").read_text(encoding="utf-8").split())
