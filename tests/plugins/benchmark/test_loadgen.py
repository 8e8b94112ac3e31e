"""Reading LoadGen's summary: each scenario's own figures and no other's."""

from __future__ import annotations

import pytest

from computekit_benchmark import loadgen

PERCENTILES = """
Result is : INVALID
90.00 percentile latency (ns)   : 64216
99.00 percentile latency (ns)   : 490858
"""


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("Scenario : SingleStream\nQPS w/o loadgen overhead : 13032.37", {"latency_p90_s": 64216e-9}),
        ("Scenario : Offline\nSamples per second: 41953.1", {"samples_per_s": 41953.1}),
        (
            "Scenario : Server\nCompleted samples per second    : 185.01",
            {"latency_p99_s": 490858e-9, "completed_per_s": 185.01},
        ),
    ],
)
def test_each_scenario_has_its_own_figures(lines, expected):
    found = loadgen.figures(loadgen.parse_summary(lines + PERCENTILES))
    assert found.pop("valid") is False
    assert found.pop("summary")["90.00 percentile latency (ns)"] == "64216"
    assert found == pytest.approx(expected)
