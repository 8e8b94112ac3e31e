"""Design power of processors by the names that operating systems print."""

from __future__ import annotations

import pytest

from computekit import catalog
from computekit.catalog.tables import read
from computekit.errors import UnknownName


@pytest.mark.parametrize(
    ("printed", "name", "watts"),
    [
        ("AMD EPYC 7763 64-Core Processor", "AMD EPYC 7763", 280),
        ("Intel(R) Xeon(R) Platinum 8259CL CPU @ 2.50GHz", "Intel Xeon Platinum 8259CL", 210),
        ("Intel(R) Xeon(R) CPU E5-2686 v4 @ 2.30GHz", "Intel Xeon E5-2686 v4", 145),
        ("12th Gen Intel(R) Core(TM) i7-12700H", "Intel Core i7-12700H", 45),
        ("AMD Ryzen 9 7950X 16-Core Processor", "AMD Ryzen 9 7950X", 170),
    ],
)
def test_printed_names_are_found(printed: str, name: str, watts: float) -> None:
    found = catalog.find_processor(printed)
    assert (found.name, found.tdp_w) == (name, watts)


@pytest.mark.parametrize("name", ["AMD EPYC", "AMD EPYC-Rome Processor", "", "aarch64", "Intel Xeon Processor"])
def test_names_without_a_model_are_refused(name: str) -> None:
    with pytest.raises(UnknownName):
        catalog.find_processor(name)


def test_rows_are_plausible() -> None:
    rows = read("processors.csv")
    assert len(rows) > 1500
    assert all(1 < float(row["tdp_w"]) <= 600 for row in rows)
