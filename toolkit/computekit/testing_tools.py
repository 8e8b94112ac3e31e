"""What tests of plugins need: runs of the command line, and small models and records to run on."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from . import devices, files, records
from .cli import main


class Outcome(NamedTuple):
    """What a run of the command line did."""

    exit_code: int
    stdout: str
    stderr: str


def run_command(*words: str) -> Outcome:
    """Run ``computekit WORDS`` in this process, with the current host."""
    from click.testing import CliRunner

    result = CliRunner().invoke(main, words, prog_name="computekit")
    return Outcome(result.exit_code, result.stdout, result.stderr)


def make_model(path: Path, seed: int = 0) -> Path:
    """Write a small model with fresh weights: the zoo's MLP for the digits data (64 inputs, 10 classes)."""
    from .models import ArchRef, build, save_module

    arch = ArchRef("mlp", {"in_features": 64, "classes": 10, "hidden": 32, "depth": 2})
    devices.make_repeatable(seed, threads=1)
    save_module(build(arch), path, arch, data="digits")
    return path


def make_record(model: Path) -> Path:
    """A record about ``model`` as a benchmark leaves one."""
    row = records.Row(label=model.stem, sha256=files.sha256(model))
    row.quantities["latency_s"] = records.Quantity(value=0.001, unit="s", how="measured", samples=[0.001, 0.001])
    row.quantities["throughput_per_s"] = records.Quantity(value=1000.0, unit="1/s", how="measured")
    record = records.Record(step="benchmark", rows=[row], inputs=[records.FileRef.of(model)])
    path = model.with_suffix(".json")
    record.save(path)
    return path
