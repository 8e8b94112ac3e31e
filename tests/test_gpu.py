"""The main job on a CUDA device, end to end; run by scripts/gpu_check.sh where there is one."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from computekit import records
from computekit.cli import main

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def cuda(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    monkeypatch.chdir(tmp_path)


def run(*words: str) -> None:
    result = CliRunner().invoke(main, list(words))
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_auto_trains_on_the_card(precision: str) -> None:
    run("train", "--arch", "mlp", "--data", "digits", "--epochs", "3", "--precision", precision, "-o", "m.pt")
    record = records.load("m.pt.record.json")
    assert record.device is not None
    assert record.device.kind == "cuda"
    accuracy = record.rows[0].quantities["accuracy"].value
    assert isinstance(accuracy, float)
    assert accuracy > 0.8


def test_the_pipeline_of_steps_runs_on_the_card() -> None:
    run("train", "--arch", "resnet", "--data", "digits", "--epochs", "3", "-o", "m.pt")
    run("quantize", "--int8", "m.pt", "--data", "digits")
    run("benchmark", "models", "m.pt", "m-int8.pt", "--data", "digits", "-o", "bench.json")
    run("cost", "price", "bench.json", "--instance", "g5.xlarge", "-o", "cost.json")
    bench = records.load("bench.json")
    assert bench.device is not None
    assert bench.device.kind == "cuda"
    assert all(isinstance(row.quantities["latency_s"].value, float) for row in bench.rows)
    run("table", "bench.json", "cost.json")
