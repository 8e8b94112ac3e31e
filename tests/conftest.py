"""Fixtures that every test may use."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("patient", deadline=None)  # a busy machine is no failure
if "CI" not in os.environ:  # there Hypothesis takes a profile of its own: no deadline, the same examples each time
    settings.load_profile("patient")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # the models of the tests are too small for threads to be of use
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in the background of a shell script
    signal.signal(signal.SIGINT, signal.default_int_handler)

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(autouse=True)
def _same_random_numbers() -> None:
    """What a test draws, and how torch computes, does not depend on the tests before it."""
    random.seed(0)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)
        sys.modules["torch"].use_deterministic_algorithms(False)  # steps turn it on for the rest of the process


@pytest.fixture(scope="session")
def make_venv() -> Callable[[Path], Run]:
    """``python = make_venv(folder)``: a fresh virtual environment that also sees the packages of this one.

    ``python("-m", "pip", ...)`` runs its interpreter in ``folder``; with ``check=False`` it may fail.
    """

    def create(folder: Path) -> Run:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], check=True)
        [packages] = (folder / "venv" / "lib").glob("python*/site-packages")
        ours = [path for path in sys.path if Path(path).name == "site-packages"]
        line = f"import site; list(map(site.addsitedir, {ours!r}))"
        (packages / "ours.pth").write_text(line + "\n", encoding="utf-8")
        script = folder / "venv" / "bin" / "computekit"
        script.write_text(f'#!/bin/sh\nexec {script.with_name("python")} -m computekit "$@"\n', encoding="utf-8")
        script.chmod(0o755)

        def python(*words: str, check: bool = True, **environment: str) -> subprocess.CompletedProcess[str]:
            result = subprocess.run(
                [str(folder / "venv" / "bin" / "python"), *words],
                capture_output=True, text=True, cwd=folder, timeout=600,
                env={**{k: v for k, v in os.environ.items() if k != "PYTHONPATH"}, **environment},
            )  # fmt: skip
            assert not check or result.returncode == 0, result.stdout + result.stderr
            return result

        return python

    return create
