"""Counters and percentiles: memory, the machine's state, and latency from timed calls."""

from __future__ import annotations

import subprocess
import sys

import pytest

from computekit_benchmark import latency, machine, memory

linux = pytest.mark.skipif(not memory.can_reset_peak(), reason="needs /proc/self/clear_refs")

PEAKS = """
from computekit_benchmark import memory
def peak(mib):
    memory.settle(); memory.reset_peak(); before = memory.resident_bytes()
    block = bytearray(mib << 20)
    del block
    return memory.peak_bytes() - before
print(peak(200), peak(8))
"""


@linux
def test_the_peak_is_exact_to_a_megabyte_and_starts_again_after_a_larger_one():
    out = subprocess.run([sys.executable, "-c", PEAKS], capture_output=True, text=True, check=True).stdout
    large, small = map(int, out.split())
    assert large == pytest.approx(200 << 20, abs=1e6)
    assert small == pytest.approx(8 << 20, abs=1e6)


def test_machine_report_has_shares_between_zero_and_one_and_a_sentence():
    watch = machine.Watch()
    sum(i * i for i in range(300_000))
    report = watch.report()
    assert 0 <= report.get("other_processes_share", 0) <= 1
    assert 0 <= report.get("steal_share", 0) <= 1
    assert machine.sentence(report).startswith("machine: ")


def test_a_shared_machine_is_said():
    quiet = {"cores": 2, "load_average_1min": 0.5, "other_processes_share": 0.01, "steal_share": 0.0}
    assert "shared" not in machine.sentence(quiet)
    assert "shared" in machine.sentence(quiet | {"other_processes_share": 0.5})


def test_percentiles_have_intervals_over_trials():
    trials = [[base + 0.001 * i for i in range(200)] for base in (1.0, 1.1, 0.9, 1.0, 1.05)]
    p95 = latency.percentile(trials, 0.95)
    assert p95.interval[0] < p95.value < p95.interval[1]
    assert p95.value == pytest.approx(1.2, abs=0.02)


def test_too_few_calls_for_a_percentile_give_none_or_no_interval():
    assert latency.percentile([[1.0] * 10] * 5, 0.99) is None
    pooled = latency.percentile([[1.0] * 30] * 5, 0.99)
    assert pooled.interval is None
    assert pooled.value == 1.0


def test_throughput_is_samples_over_the_time_of_all_calls():
    assert latency.throughput([[0.5, 1.5]], 8).value == pytest.approx(8.0)
