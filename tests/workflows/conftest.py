"""A pipeline of tiny fake steps, run by the real Snakemake in a folder of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Pipeline:
    """A folder with a config and an environment in which the fake steps are installed."""

    folder: Path
    env: dict[str, str]

    def configure(self, text: str) -> None:
        (self.folder / "config.yaml").write_text(text, encoding="utf-8")

    def snakemake(self, *arguments: str, cores: int | None = 2) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "snakemake", "--snakefile", str(ROOT / "Snakefile")]
        command += [*(["--cores", str(cores)] if cores else []), "--configfile", "config.yaml", *arguments]
        return subprocess.run(
            command,
            cwd=self.folder,
            env=self.env,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            check=False,
        )

    def run(self, *arguments: str, cores: int | None = 2) -> set[str]:
        """Run and return the outputs that were made, relative to the results folder."""
        before = self._times()
        done = self.snakemake(*arguments, cores=cores)
        assert done.returncode == 0, done.stderr
        return {name for name, time in self._times().items() if before.get(name) != time}

    def _times(self) -> dict[str, int]:
        results = self.folder / "results"
        found = [path for path in results.rglob("*") if path.is_file() and "logs" not in path.parts]
        return {path.relative_to(results).as_posix(): path.stat().st_mtime_ns for path in found}


@pytest.fixture(scope="session")
def fake_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder to put on PYTHONPATH, in which the fake plugin is installed."""
    site = tmp_path_factory.mktemp("site")
    shutil.copy(Path(__file__).with_name("fake_steps.py"), site)
    info = site / "computekit_fake-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: computekit-fake\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text("[computekit]\nfake = fake_steps\n", encoding="utf-8")
    return site


@pytest.fixture(scope="session")
def fake_env(fake_site: Path) -> dict[str, str]:
    paths = [str(fake_site), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


@pytest.fixture
def pipeline(tmp_path: Path, fake_env: dict[str, str]) -> Pipeline:
    return Pipeline(tmp_path, fake_env)
