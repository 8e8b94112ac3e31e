"""``computekit benchmark device``, and records of devices in the place of catalog names."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from computekit import catalog, cli
from computekit.errors import FileProblem
from computekit_benchmark import device


@pytest.mark.slow
def test_a_device_record_stands_for_a_catalog_row(tmp_path, monkeypatch):
    monkeypatch.setattr(device, "LARGEST", {"cpu": 256})
    record = tmp_path / "device.json"
    result = CliRunner().invoke(
        cli.main, ["benchmark", "device", "--device", "cpu", "--threads", "1", "-q", "-o", str(record)]
    )
    assert result.exit_code == 0, result.stderr
    assert "GFLOP/s" in result.stdout
    quantities = json.loads(record.read_text())["rows"][0]["quantities"]
    assert "torchrun" in quantities["allreduce_bytes_s"]["reason"]
    hardware = catalog.find_hardware(str(record))
    assert hardware.peak_flops["fp32"] == quantities["peak_fp32_flops"]["value"] > 1e8
    assert hardware.bandwidth_bytes_s == quantities["copy_bandwidth_bytes_s"]["value"]
    assert "measured" in hardware.source


def test_another_record_is_no_device(tmp_path):
    other = tmp_path / "other.json"
    other.write_text(json.dumps({"schema_version": 1, "step": "train", "rows": []}))
    with pytest.raises(FileProblem, match="not a device record"):
        catalog.find_hardware(str(other))
