"""``computekit cost price``: intervals, matching machines, energy and its sources, and refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from computekit.cli import main
from computekit.records import Device, FileRef, Lineage, Quantity, Record, Row, load

CPU = Device(kind="cpu", name="AMD EPYC", threads=2)
H200 = Device(kind="cuda", name="NVIDIA H200")


def throughput(value: float | None = 1000.0, **about: Any) -> Quantity:
    return Quantity(value=value, unit="1/s", how="measured", **about)


def benchmark(path: Path, device: Device | None, **rows: dict[str, Quantity]) -> Path:
    found = [Row(label=label, sha256=f"{label}-hash", quantities=quantities) for label, quantities in rows.items()]
    Record(step="benchmark", rows=found, device=device).save(path)
    return path


def cost(*words: str | Path) -> Result:
    return CliRunner().invoke(main, ["cost", *map(str, words)])


def priced(tmp_path: Path, *words: str | Path) -> Record:
    result = cost(*words, "-o", tmp_path / "cost.json")
    assert result.exit_code == 0, result.output
    return load(tmp_path / "cost.json")


def test_cost_carries_the_interval_of_the_throughput_and_joins_by_hash(tmp_path: Path) -> None:
    source = benchmark(tmp_path / "b.json", CPU, model={
        "throughput_per_s": throughput(interval=(800.0, 1250.0), confidence=0.95)})  # fmt: skip
    row = priced(tmp_path, source, "--price-usd-per-hour", "3.6").rows[0]
    found = row.quantities["cost_usd_per_million"]
    assert row.sha256 == "model-hash"
    assert found.value == pytest.approx(1.0)
    assert found.interval == pytest.approx((0.8, 1.25)) and found.confidence == 0.95
    assert "3.6 USD/h, given" in (found.method or "")


def test_instance_price_is_that_of_one_of_its_accelerators(tmp_path: Path) -> None:
    source = benchmark(tmp_path / "b.json", H200, model={"throughput_per_s": throughput()})
    record = priced(tmp_path, source, "--instance", "p5en.48xlarge")
    found = record.rows[0].quantities["cost_usd_per_million"]
    assert found.value == pytest.approx(63.296 / 8 / 3600 / 1000 * 1e6)
    assert "1 of 8 accelerators" in (found.method or "") and "2026-07-20" in (found.method or "")
    assert record.notes == []


def test_another_machine_than_the_measured_one_is_said(tmp_path: Path) -> None:
    source = benchmark(tmp_path / "b.json", CPU, model={"throughput_per_s": throughput()})
    (note,) = priced(tmp_path, source, "--instance", "c7i.large").notes
    assert note.startswith("Measured on AMD EPYC with 2 threads, priced as aws/c7i.large/us-east-1")


def test_instance_with_the_measured_accelerator_counts_even_if_another_is_cheaper(tmp_path: Path) -> None:
    source = benchmark(tmp_path / "b.json", H200, model={"throughput_per_s": throughput()})
    record = priced(tmp_path, source, "--instance", "g4dn.xlarge", "--instance", "p5en.48xlarge")
    assert "p5en.48xlarge" in (record.rows[0].quantities["cost_usd_per_million"].method or "")
    assert [offer["instance"] for offer in record.details["offers"]] == [
        "aws/p5en.48xlarge/us-east-1",
        "aws/g4dn.xlarge/us-east-1",
    ]


def test_spot(tmp_path: Path) -> None:
    source = benchmark(tmp_path / "b.json", CPU, model={"throughput_per_s": throughput()})
    record = priced(tmp_path, source, "--instance", "gcp/g2-standard-4/us-central1", "--spot")
    assert record.rows[0].quantities["cost_usd_per_million"].value == pytest.approx(0.3973 / 3.6)
    refused = cost(source, "--instance", "g5.xlarge", "--spot")
    assert refused.exit_code == 1 and "no spot price" in refused.output


def test_measured_energy_is_used_and_becomes_carbon(tmp_path: Path) -> None:
    source = benchmark(tmp_path / "b.json", CPU, model={
        "throughput_per_s": throughput(), "energy_j": Quantity(value=0.036, unit="J", how="measured")})  # fmt: skip
    record = priced(
        tmp_path, source, "--price-usd-per-hour", "1", "--pue", "1.5", "--carbon-intensity", "gcp/us-central1"
    )
    quantities = record.rows[0].quantities
    assert quantities["energy_wh_per_million"].value == pytest.approx(15)
    assert quantities["energy_wh_per_million"].how == "measured"
    assert quantities["carbon_kg_per_million"].value == pytest.approx(0.015 * 0.430)


def test_design_power_is_a_catalog_upper_bound(tmp_path: Path) -> None:
    source = benchmark(tmp_path / "b.json", H200, model={"throughput_per_s": throughput()})
    found = priced(tmp_path, source, "--instance", "p5en.48xlarge").rows[0].quantities["energy_wh_per_million"]
    assert found.value == pytest.approx(700 / 3.6)
    assert found.how == "catalog" and (found.method or "").startswith("power / throughput_per_s; upper bound")


def test_design_power_of_a_processor_is_that_of_the_whole_package(tmp_path: Path) -> None:
    device = Device(kind="cpu", name="Intel(R) Xeon(R) Platinum 8259CL CPU @ 2.50GHz", threads=1)
    source = benchmark(tmp_path / "b.json", device, model={"throughput_per_s": throughput()})
    found = priced(tmp_path, source, "--price-usd-per-hour", "1").rows[0].quantities["energy_wh_per_million"]
    assert found.value == pytest.approx(210 / 3.6) and found.how == "catalog"
    assert "upper bound: design power 210 W of the whole Intel Xeon Platinum 8259CL" in (found.method or "")


def test_unknown_stays_unknown_with_a_reason(tmp_path: Path) -> None:
    source = benchmark(tmp_path / "b.json", CPU, model={"throughput_per_s": throughput()},
                       failed={"throughput_per_s": throughput(None, reason="out of memory")})  # fmt: skip
    known, failed = priced(tmp_path, source, "--instance", "c7i.large").rows
    energy = known.quantities["energy_wh_per_million"]
    assert energy.value is None and "AMD EPYC" in (energy.reason or "")
    assert known.quantities["carbon_kg_per_million"].reason == "the energy is unknown"
    assert failed.quantities["cost_usd_per_million"].reason == "no throughput_per_s: out of memory"


def test_given_power_beats_the_catalog(tmp_path: Path) -> None:
    source = benchmark(tmp_path / "b.json", H200, model={"throughput_per_s": throughput()})
    record = priced(tmp_path, source, "--price-usd-per-hour", "1", "--device-power-w", "360", "--carbon-intensity", "0")
    quantities = record.rows[0].quantities
    assert (quantities["energy_wh_per_million"].value, quantities["energy_wh_per_million"].how) == (100, "given")
    assert quantities["carbon_kg_per_million"].value == 0


def training(model: Path, device: Device) -> Path:
    model.write_bytes(b"weights")
    output = FileRef.of(model)
    path = model.with_name("model.pt.record.json")
    Record(step="train", rows=[Row(label="model", sha256=output.sha256)], output=output, device=device,
           lineage=[Lineage(step="train", sha256=output.sha256, train_flops=1e18)],
           timing={"duration_s": 1800.0}).save(path)  # fmt: skip
    return path


def test_training_run_is_priced_by_its_wall_time(tmp_path: Path) -> None:
    row = priced(tmp_path, training(tmp_path / "model.pt", H200), "--price-usd-per-hour", "4").rows[0]
    assert row.sha256 == FileRef.of(tmp_path / "model.pt").sha256
    assert row.quantities["training_cost_usd"].value == pytest.approx(2.0)
    assert row.quantities["training_energy_wh"].value == pytest.approx(350)


def test_training_run_on_another_accelerator_by_its_flops(tmp_path: Path) -> None:
    record = priced(tmp_path, training(tmp_path / "model.pt", CPU), "--instance", "c7i.large", "--instance",
                    "p5.4xlarge", "--utilization", "0.4")  # fmt: skip
    hours = 1e18 / (0.4 * 989.4e12) / 3600
    quantities = record.rows[0].quantities
    assert quantities["training_cost_usd"].value == pytest.approx(hours * 6.88)
    assert quantities["training_energy_wh"].value == pytest.approx(hours * 700)
    assert record.notes == [] and len(record.details["offers"]) == 1


def test_peak_that_no_source_confirms_is_marked(tmp_path: Path) -> None:
    record = priced(tmp_path, training(tmp_path / "model.pt", CPU), "--instance", "g5.xlarge", "--utilization", "0.4")
    assert "70 bf16 TFLOP/s (not verified) of A10G" in (record.rows[0].quantities["training_cost_usd"].method or "")


def test_flops_cannot_be_charged_without_a_peak(tmp_path: Path) -> None:
    record = priced(tmp_path, training(tmp_path / "model.pt", CPU), "--instance", "c7i.large", "--utilization", "0.4")
    found = record.rows[0].quantities["training_cost_usd"]
    assert found.value is None and "there is no bf16 peak for aws/c7i.large" in (found.reason or "")


def test_measured_peak_prices_a_machine_that_no_catalog_knows(tmp_path: Path) -> None:
    device = tmp_path / "device.json"
    rates = {"peak_fp32_flops": 2e11, "copy_bandwidth_bytes_s": 1e10, "memory_bytes": 4e9}
    row = Row(label="AMD EPYC", quantities={key: Quantity(value=value) for key, value in rates.items()})
    Record(step="benchmark device", rows=[row], device=CPU).save(device)
    words = (training(tmp_path / "model.pt", CPU), "--instance", "c7i.large", "--device-record", device)
    record = priced(tmp_path, *words, "--utilization", "0.5", "--dtype", "fp32")
    found = record.rows[0].quantities["training_cost_usd"]
    assert found.value == pytest.approx(1e18 / 1e11 / 3600 * 0.08925)
    assert "0.2 fp32 TFLOP/s (measured) of AMD EPYC" in (found.method or "")
    assert record.notes[0].startswith("Measured on AMD EPYC, priced as aws/c7i.large/us-east-1")
    assert cost(*words).exit_code == 2


def estimate(path: Path, options: dict[str, Any], **quantities: Quantity) -> Path:
    Record(step="estimator train", options=options, rows=[Row(label="gpt", quantities=quantities)]).save(path)
    return path


def test_estimated_training_is_priced_by_its_device_hours(tmp_path: Path) -> None:
    """An estimator's throughput is that of training on all devices; it must not be taken for inference."""
    source = estimate(
        tmp_path / "e.json",
        {"device_name": "H200"},
        gpu_hours=Quantity(value=1000.0, unit="h", interval=(900.0, 1200.0), confidence=0.9),
        throughput_per_s=Quantity(value=5.0, unit="1/s"),
    )
    record = priced(tmp_path, source, "--instance", "p5en.48xlarge")
    quantities = record.rows[0].quantities
    assert "cost_usd_per_million" not in quantities
    assert quantities["training_cost_usd"].value == pytest.approx(1000 * 63.296 / 8)
    assert quantities["training_cost_usd"].interval == pytest.approx((900 * 63.296 / 8, 1200 * 63.296 / 8))
    assert quantities["training_energy_wh"].value == pytest.approx(700_000)
    assert record.notes == []


def test_estimate_of_a_step_alone_is_refused(tmp_path: Path) -> None:
    source = estimate(tmp_path / "e.json", {"device_name": "H200"}, step_time_s=Quantity(value=1.0, unit="s"),
                      throughput_per_s=Quantity(value=5.0, unit="1/s"))  # fmt: skip
    result = cost(source, "--instance", "p5en.48xlarge")
    assert result.exit_code == 1 and "--tokens or --samples" in result.output


def test_estimate_for_another_device_is_said(tmp_path: Path) -> None:
    source = estimate(tmp_path / "e.json", {"device_name": "H100-SXM5-80GB"}, gpu_hours=Quantity(value=1.0, unit="h"))
    (note,) = priced(tmp_path, source, "--instance", "p5en.48xlarge").notes
    assert note.startswith("Estimated for H100-SXM5-80GB, priced as aws/p5en.48xlarge/us-east-1")


def test_generated_tokens_are_charged_for_all_devices(tmp_path: Path) -> None:
    """DeepSeek's published day: 226.75 nodes of 8 at 2 USD an hour make 168e9 tokens for 87,072 USD."""
    source = estimate(
        tmp_path / "e.json",
        {"device_name": "H800", "tp": 8},
        tokens_per_s=Quantity(value=168e9 / 226.75 / 24 / 3600, unit="token/s"),
    )
    quantities = priced(tmp_path, source, "--price-usd-per-hour", "2").rows[0].quantities
    assert quantities["cost_usd_per_million_tokens"].value == pytest.approx(87_072 / 168e3)


@pytest.mark.parametrize(
    ("key", "priced_as"),
    [("output_tokens_per_s", "cost_usd_per_million_tokens"), ("offline_throughput_per_s", "cost_usd_per_million")],
)
def test_measured_generation_and_offline_serving_have_a_price(tmp_path: Path, key: str, priced_as: str) -> None:
    source = benchmark(tmp_path / "b.json", H200, model={key: throughput(100.0)})
    quantities = priced(tmp_path, source, "--price-usd-per-hour", "3.6").rows[0].quantities
    assert quantities[priced_as].value == pytest.approx(10)


def test_spot_training_points_to_the_schedule(tmp_path: Path) -> None:
    source = estimate(tmp_path / "e.json", {"device_name": "L4"}, gpu_hours=Quantity(value=1.0, unit="h"))
    (note,) = priced(tmp_path, source, "--instance", "gcp/g2-standard-4/us-central1", "--spot").notes
    assert "cost schedule" in note


def test_same_records_same_bytes(tmp_path: Path) -> None:
    source = benchmark(tmp_path / "b.json", H200, model={"throughput_per_s": throughput()})
    outputs = []
    for _ in range(2):
        record = priced(tmp_path, source, "--instance", "p5en.48xlarge")
        outputs.append(json.dumps(record.model_dump(exclude={"timing"}), sort_keys=True))
    assert outputs[0] == outputs[1]


def test_nothing_to_price_is_refused(tmp_path: Path) -> None:
    record = tmp_path / "r.json"
    Record(step="estimator", rows=[Row(label="x")]).save(record)
    result = cost(record, "--instance", "c7i.large")
    assert result.exit_code == 1 and "nothing to price" in result.output


def test_throughput_of_zero_is_refused(tmp_path: Path) -> None:
    source = benchmark(tmp_path / "b.json", CPU, model={"throughput_per_s": throughput(0.0)})
    result = cost(source, "--instance", "c7i.large")
    assert result.exit_code == 1 and "must be positive" in result.output


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ((), 2, "--instance NAME or --price-usd-per-hour"),
        (("--instance", "g5.xlrge"), 1, "did you mean g5.xlarge"),
        (("--instance", "a2-highgpu-1g"), 1, "could be any of gcp/a2-highgpu-1g/europe-west4"),
        (("--price-usd-per-hour", "-1"), 2, "finite number above 0"),
        (("--price-usd-per-hour", "nan"), 2, "finite number above 0"),
        (("--price-usd-per-hour", "1", "--carbon-intensity", "Germny"), 1, "did you mean Germany"),
        (("--price-usd-per-hour", "1", "--carbon-intensity", "nan"), 1, "no number of g CO2e"),
        (("--price-usd-per-hour", "1", "--pue", "0.5"), 2, "of at least 1"),
        (("--price-usd-per-hour", "1", "--pue", "nan"), 2, "of at least 1"),
    ],
)
def test_bad_requests_are_one_line(tmp_path: Path, words: tuple[str, ...], code: int, message: str) -> None:
    source = benchmark(tmp_path / "b.json", CPU, model={"throughput_per_s": throughput()})
    result = cost(source, *words, "-o", tmp_path / "out.json")
    assert result.exit_code == code, result.output
    assert message in result.output and not (tmp_path / "out.json").exists()
