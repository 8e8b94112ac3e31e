"""Fixtures for the host: plugin distributions that are really there, and a ``computekit`` that sees them."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

Install = Callable[..., Path]
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder that plays site-packages."""
    folder = tmp_path / "site"
    folder.mkdir()
    return folder


@pytest.fixture
def install(site: Path) -> Install:
    """``install("mine", code)`` puts distribution computekit-mine 1.0 with module computekit_mine into ``site``."""

    def install(name: str, code: str, version: str = "1.0", distribution: str = "", entry: str = "") -> Path:
        module = f"computekit_{name.replace('-', '_')}"
        distribution = distribution or f"computekit-{name}"
        (site / f"{module}.py").write_text(textwrap.dedent(code), encoding="utf-8")
        info = site / f"{distribution.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n\nText.\n")
        (info / "entry_points.txt").write_text(f"[computekit]\n{name} = {entry or module}\n")
        return site / f"{module}.py"

    return install


@pytest.fixture
def on_path(site: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Make ``site`` importable in this process, and forget its modules afterwards."""
    monkeypatch.syspath_prepend(str(site))
    yield site
    for name, module in list(sys.modules.items()):
        if (getattr(module, "__file__", None) or "").startswith(str(site)):
            del sys.modules[name]


@pytest.fixture
def computekit(site: Path, tmp_path: Path) -> Run:
    """Run ``computekit`` in a process of its own, with ``site`` on its path and ``tmp_path`` as folder."""

    def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "computekit", *words],
            capture_output=True, text=True, cwd=tmp_path, timeout=120,
            env={**os.environ, "PYTHONPATH": str(site), "PYTHONDONTWRITEBYTECODE": "1", **environment},
        )  # fmt: skip

    return run
