"""The hardware catalog: finding devices by any of their names, and rules that every honest row obeys."""

from __future__ import annotations

import pytest

import computekit
from computekit import catalog, host
from computekit.catalog.accelerators import shipped
from computekit.errors import AmbiguousName, CatalogRowRefused, UnknownName

ROWS = {row.name: row for row in shipped()}


def ratio(name: str, numerator: str, denominator: str) -> float | None:
    peaks = ROWS[name].peak_flops
    if numerator not in peaks or denominator not in peaks:
        return None
    return peaks[numerator] / peaks[denominator]


@pytest.mark.parametrize(
    ("printed", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "H100-SXM5-80GB"),
        ("NVIDIA H100 PCIe", "H100-PCIe-80GB"),
        ("NVIDIA H200", "H200-SXM-141GB"),
        ("NVIDIA A100-SXM4-80GB", "A100-SXM4-80GB"),
        ("NVIDIA A100 80GB PCIe", "A100-PCIe-80GB"),
        ("NVIDIA A100-PCIE-40GB", "A100-PCIe-40GB"),
        ("Tesla T4", "T4"),
        ("Tesla V100-SXM2-16GB", "V100-SXM2-16GB"),
        ("NVIDIA A10G", "A10G"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA GeForce RTX 4090", "RTX-4090"),
        ("AMD Instinct MI300X", "MI300X"),
        ("AMD Instinct MI250X", "MI250X-GCD"),
        ("h100-sxm5-80gb", "H100-SXM5-80GB"),
    ],
)
def test_names_that_torch_prints_are_found(printed: str, name: str) -> None:
    assert catalog.find_hardware(printed).name == name


def test_every_name_and_alias_finds_its_own_row() -> None:
    for row in ROWS.values():
        for name in (row.name, *row.aliases):
            assert catalog.find_hardware(name).name == row.name, name


def test_part_of_several_names_is_refused_with_all_of_them() -> None:
    with pytest.raises(AmbiguousName) as caught:
        catalog.find_hardware("H100")
    assert caught.value.meant == ["H100-NVL-94GB", "H100-PCIe-80GB", "H100-SXM5-80GB"]


@pytest.mark.parametrize("name", ["", "AMD EPYC 9R14", "H100 SXM6", "Frontier"])
def test_unknown_device_is_refused(name: str) -> None:
    with pytest.raises((UnknownName, AmbiguousName)):
        catalog.find_hardware(name)


@pytest.mark.parametrize("name", ["Loihi 2", "Hala Point", "quantum computer", "photonic"])
def test_device_without_peak_is_refused_with_the_reason(name: str) -> None:
    with pytest.raises(catalog.NoPeak, match="is not in the hardware catalog: "):
        catalog.find_hardware(name)


# A figure with the sparsity factor of 2 breaks one of the next rules.


@pytest.mark.parametrize("name", [n for n in ROWS if ratio(n, "bf16", "tf32")])
def test_dense_bf16_is_twice_tf32(name: str) -> None:
    exceptions = {"Trainium1": 1, "Trainium2": 1, "Trainium3": 1, "Inferentia2": 1, "Gaudi3": 4, "H800-SXM5": 2.18}
    assert ratio(name, "bf16", "tf32") == pytest.approx(exceptions.get(name, 2), rel=0.02)


@pytest.mark.parametrize("name", [n for n in ROWS if ratio(n, "fp8", "bf16")])
def test_dense_fp8_is_twice_bf16(name: str) -> None:
    no_fp8_unit = {"TPU-v5p": 1, "TPU-v6e": 1, "Gaudi3": 1, "Trainium1": 1, "Inferentia2": 1, "Trainium3": 3.75}
    assert ratio(name, "fp8", "bf16") == pytest.approx(no_fp8_unit.get(name, 2), rel=0.03)


@pytest.mark.parametrize("name", [n for n in ROWS if ratio(n, "fp16", "bf16")])
def test_fp16_with_fp32_accumulation_runs_at_the_bf16_rate(name: str) -> None:
    assert ratio(name, "fp16", "bf16") == pytest.approx({"Gaudi3": 0.25, "Gaudi2": 1}.get(name, 1), rel=0.01)


@pytest.mark.parametrize("name", [n for n in ROWS if ratio(n, "int8", "bf16")])
def test_int8_is_one_two_or_four_times_bf16(name: str) -> None:
    found = ratio(name, "int8", "bf16")
    if name in ("B300-SXM", "GB300"):  # Blackwell Ultra gave up its int8 units: fp8 is 29 times faster
        assert found == pytest.approx(0.068, rel=0.05)
    else:
        assert any(found == pytest.approx(whole, rel=0.03) for whole in (1, 2, 4))


def test_fp16_accumulation_is_a_column_of_its_own_on_geforce_cards() -> None:
    for name in ("RTX-3090", "RTX-4090", "RTX-5090"):
        assert ratio(name, "fp16_acc16", "fp16") == pytest.approx(2, rel=0.01)


def test_units_are_plausible() -> None:
    for row in ROWS.values():
        assert 1e9 < row.bandwidth_bytes_s < 1e14 and 1e8 < row.memory_bytes < 1e12, row.name
        assert all(1e11 < peak < 1e17 for peak in row.peak_flops.values()), row.name
        assert row.tdp_w is None or 50 < row.tdp_w < 2000, row.name
        assert row.source and row.vendor and row.year, row.name


def test_unverified_names_only_figures_that_the_row_has() -> None:
    for row in ROWS.values():
        others = {"memory": row.memory_bytes, "bandwidth": row.bandwidth_bytes_s, "tdp": row.tdp_w,
                  "interconnect": row.interconnect_bytes_s}  # fmt: skip
        for figure in row.unverified:
            assert row.peak_flops.get(figure) or others.get(figure), (row.name, figure)


def test_plugin_row_is_found_and_replaces_a_shipped_one(monkeypatch: pytest.MonkeyPatch) -> None:
    class Plugin:
        @computekit.hookimpl
        def computekit_hardware(self) -> list[computekit.Hardware]:
            return [
                computekit.Hardware("MyChip", "npu", {"bf16": 1e14}, 32e9, 1e12, "vendor sheet"),
                computekit.Hardware("T4", "gpu", {"fp16": 6e13}, 16e9, 3e11, "measured here"),
            ]

    monkeypatch.setattr(host, "current", lambda: host.Host.of(("mine", Plugin())))
    assert catalog.find_hardware("mychip").peak_flops == {"bf16": 1e14}
    assert catalog.find_hardware("T4").source == "measured here"


@pytest.mark.parametrize(
    ("peaks", "source", "problem"),
    [({"bf17": 1.0}, "x", "unknown peak"), ({"bf16": 0.0}, "x", "not positive"), ({"bf16": 1.0}, "", "no source")],
)
def test_row_that_breaks_a_rule_is_refused(peaks: dict[str, float], source: str, problem: str) -> None:
    with pytest.raises(CatalogRowRefused, match=problem):
        computekit.Hardware("Bad", "gpu", peaks, 1e9, 1e9, source)
