"""Joules come from a counter or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from computekit import energy


def rapl(folder: Path, package: int, joules: float, top: float = 1000) -> None:
    place = folder / f"intel-rapl:{package}"
    place.mkdir(exist_ok=True)
    (place / "energy_uj").write_text(str(int(joules * 1e6)))
    (place / "max_energy_range_uj").write_text(str(int(top * 1e6)))
    (folder / f"intel-rapl:{package}:0").mkdir(exist_ok=True)  # a part of the package, already counted in it


def test_rapl_adds_packages_and_survives_a_wrap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(energy, "POWERCAP", tmp_path)
    rapl(tmp_path, 0, 990)
    rapl(tmp_path, 1, 5)
    read = energy.counter("cpu")
    rapl(tmp_path, 0, 10)
    rapl(tmp_path, 1, 8)
    assert read() == pytest.approx(20 + 3, abs=1e-4)
    rapl(tmp_path, 1, 9)
    assert read() == pytest.approx(24, abs=1e-4)


@pytest.mark.parametrize("kind", ["cpu", "mps"])
def test_no_counter_is_a_reason_not_a_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(energy, "POWERCAP", tmp_path)
    with pytest.raises(energy.NoCounter, match=r"counter"):
        energy.counter(kind)
