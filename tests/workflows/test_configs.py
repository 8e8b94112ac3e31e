"""The configs that ship, and what two runs of a pipeline of real steps have in common: everything but the timing."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from computekit_workflows import plan, registry

from .conftest import ROOT, Pipeline

TINY = """
data: digits
steps:
  train: {arch: mlp, arch_args: {hidden: 16}, epochs: 1}
  prune: {epochs: 1}
  distill: {student: mlp, student_args: {hidden: 8}, epochs: 1}
  int8: {step: quantize, int8: true}
variants:
  baseline: [train]
  pruned+int8: [train, prune, int8]
  distilled: [train, distill]
measure:
  estimator: {}
table:
  columns: [parameters, file_bytes, forward_flops, accuracy, accuracy_difference, train_flops]
"""


@pytest.mark.parametrize("config", sorted((ROOT / "config").glob("*.yaml")), ids=lambda path: path.name)
def test_shipped_config_can_be_planned(config: Path) -> None:
    raw = yaml.safe_load(config.read_text(encoding="utf-8"))
    made = plan.build(raw, registry.installed())
    assert list(made.variants) == ["baseline", "int8", "pruned", "pruned+int8", "distilled", "distilled+int8"]
    assert len(made.models) == 6, "every step on the way is a variant itself"


def reproducible(path: Path) -> Any:
    """A record without its timing, or a table, as far as it should be the same in each run."""
    document = json.loads(path.read_text(encoding="utf-8"))
    del document["timing"]
    for row in document["rows"]:
        row["quantities"] = {key: q for key, q in row["quantities"].items() if q["how"] != "measured"}
    return document


@pytest.mark.slow
def test_two_runs_from_nothing_give_the_same_bytes(tmp_path: Path) -> None:
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder, cores in zip(folders, (1, 2), strict=True):
        folder.mkdir()
        pipeline = Pipeline(folder, dict(os.environ))
        pipeline.configure(TINY)
        pipeline.run(cores=cores)
    one, two = (folder / "results" for folder in folders)
    models = sorted(path.name for path in (one / "models").glob("*.pt"))
    assert len(models) == 4
    for name in models:
        assert (one / "models" / name).read_bytes() == (two / "models" / name).read_bytes(), name
    records = [path.relative_to(one) for path in one.rglob("*.json") if path.name != "table.json"]
    assert len(records) == 7
    for name in records:
        assert reproducible(one / name) == reproducible(two / name), name
    assert (one / "table.md").read_bytes() == (two / "table.md").read_bytes()
    with (one / "table.csv").open(encoding="utf-8", newline="") as stream:
        assert [row["model"] for row in csv.DictReader(stream)] == ["baseline", "pruned+int8", "distilled"]
