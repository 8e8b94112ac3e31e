"""The server scenario's queue on a clock of our own, and LoadGen's summary."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from computekit_benchmark import loadgen, serving


class Clock:
    """Time that passes only when somebody sleeps or works."""

    def __init__(self) -> None:
        self.time = 100.0

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        assert seconds >= 0
        self.time += seconds


def serve(arrivals, work_s, max_batch=4, max_delay_s=0.01, give_up_s=1e9):
    clock = Clock()
    batches = []

    def answer(indices):
        batches.append(list(indices))
        clock.sleep(work_s)

    served = serving.serve(
        arrivals, answer, max_batch=max_batch, max_delay_s=max_delay_s, give_up_s=give_up_s,
        now=clock.now, sleep=clock.sleep,
    )  # fmt: skip
    return served, batches


def test_a_full_batch_starts_at_once():
    served, batches = serve([0.0, 0.001, 0.002, 0.003, 1.0], 0.005)
    assert batches == [[0, 1, 2, 3], [4]]
    assert served.latencies[:4] == pytest.approx([0.008, 0.007, 0.006, 0.005])


def test_a_lone_query_waits_no_longer_than_the_delay():
    served, batches = serve([0.0, 1.0, 2.0], 0.005)
    assert batches == [[0], [1], [2]]
    assert served.latencies == pytest.approx([0.015, 0.015, 0.005])  # after the last nobody else will come


def test_queries_that_come_during_a_batch_form_the_next():
    served, batches = serve([0.0, 0.02, 0.021, 0.022, 0.03], 0.05, max_delay_s=0.0)
    assert batches == [[0], [1, 2, 3, 4]]
    assert served.latencies[4] == pytest.approx(0.07)


def test_an_overloaded_server_gives_up_and_counts_what_is_left():
    served, _ = serve([i / 100 for i in range(100)], 1.0, max_batch=1, give_up_s=5.0)
    assert len(served.latencies) == 5
    assert served.unanswered == 95
    assert serving.goodput(served, 1.5) == pytest.approx(1 / 5)


@given(
    st.lists(st.floats(0, 10), min_size=1, max_size=40).map(sorted),
    st.floats(1e-3, 1),
    st.integers(1, 8),
    st.floats(0, 0.5),
)
def test_every_query_is_answered_once_in_order_and_never_before_its_work_is_done(arrivals, work_s, max_batch, delay):
    served, batches = serve(arrivals, work_s, max_batch, delay)
    assert [index for batch in batches for index in batch] == list(range(len(arrivals)))
    assert max(served.batches) <= max_batch
    assert min(served.latencies) >= work_s - 1e-9
    assert served.unanswered == 0


def test_arrivals_have_the_rate_and_the_spread_of_a_poisson_process():
    counts = [len(serving.poisson_arrivals(50, 10, random.Random(seed))) for seed in range(200)]
    mean = sum(counts) / 200
    variance = sum((c - mean) ** 2 for c in counts) / 199
    assert mean == pytest.approx(500, rel=0.02)
    assert variance == pytest.approx(500, rel=0.35)


def test_loadgen_summary_becomes_figures_in_seconds():
    text = "Scenario : Server\nResult is : INVALID\n99.00 percentile latency (ns)   : 8800000\n"
    text += "Completed samples per second    : 194.50\n=====\n"
    figures = loadgen.figures(loadgen.parse_summary(text))
    assert figures["valid"] is False
    assert figures["latency_p99_s"] == pytest.approx(8.8e-3)
    assert figures["completed_per_s"] == 194.5
