"""Intervals against published values and against their own definition."""

from __future__ import annotations

import math
import random

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from computekit import statistics


@pytest.mark.parametrize(
    ("p", "degrees", "expected"),
    [  # printed tables of Student's t
        (0.975, 1, 12.7062047),
        (0.975, 4, 2.7764451),
        (0.975, 10, 2.2281389),
        (0.95, 5, 2.0150484),
        (0.995, 2, 9.9248432),
        (0.975, 1000, 1.9623391),
        (0.975, 1e7, 1.9599642),
        (0.025, 4, -2.7764451),
        (0.5, 3, 0.0),
    ],
)
def test_t_quantile_matches_tables(p, degrees, expected):
    assert statistics.t_quantile(p, degrees) == pytest.approx(expected, abs=2e-7)


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_matches_newcombe_1998_table_1(successes, trials, low, high):
    estimate = statistics.wilson(successes, trials)
    assert estimate.interval == pytest.approx((low, high), abs=5e-5)


@given(st.integers(1, 10**6).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_stays_in_the_unit_interval_and_holds_its_value(pair):
    estimate = statistics.wilson(*pair)
    low, high = estimate.interval
    assert 0 <= low <= estimate.value <= high <= 1


@pytest.mark.parametrize(("n", "ranks"), [(6, (1, 6)), (10, (2, 9)), (20, (6, 15)), (100, (40, 61))])
def test_median_interval_uses_the_tabulated_ranks(n, ranks):
    samples = [float(i) for i in range(1, n + 1)]
    random.Random(0).shuffle(samples)
    assert statistics.quantile_interval(samples).interval == ranks


@pytest.mark.parametrize(("q", "enough"), [(0.5, 6), (0.9, 36), (0.99, 368)])
def test_quantile_interval_says_when_there_are_too_few_samples(q, enough):
    samples = [float(i) for i in range(enough)]
    assert statistics.quantile_interval(samples, q).interval is not None
    short = statistics.quantile_interval(samples[:-1], q)
    assert short.interval is None
    assert "too few" in short.method
    assert "interval" not in short.about


def test_quantile_interval_is_exact_for_many_samples():
    samples = [float(i) for i in range(200_000)]
    low, high = statistics.quantile_interval(samples).interval
    half = 1.959964 * math.sqrt(200_000 / 4)
    assert (high - low) / 2 == pytest.approx(half, rel=0.01)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50), st.floats(0, 1))
def test_quantile_agrees_with_numpy(samples, q):
    assert statistics.quantile(samples, q) == pytest.approx(float(numpy.quantile(samples, q)), rel=1e-9, abs=1e-6)


def test_quantile_interval_covers_as_often_as_it_says():
    generator = random.Random(1)
    covered = 0
    for _ in range(1000):
        low, high = statistics.quantile_interval([generator.expovariate(1) for _ in range(25)]).interval
        covered += low <= math.log(2) <= high
    assert covered >= 940  # 957 expected for these ranks; 940 is 2.6 standard deviations below


def test_mean_interval_of_a_textbook_sample():
    # NIST e-Handbook 1.3.5.2 gives the formula; checked by hand: mean 3, s = sqrt(2.5), t(4) = 2.776445
    estimate = statistics.mean_interval([1, 2, 3, 4, 5])
    assert estimate.value == 3
    assert estimate.interval == pytest.approx((3 - 1.963243, 3 + 1.963243), abs=1e-6)
    assert statistics.mean_interval([7.0]).interval is None


def test_paired_difference_matches_fagerland_2014():
    # Airway hyper-responsiveness, n = 21: 1 pair only before, 7 only after; Bonett-Price (-0.508, -0.013), p = 0.0703
    a = [True] * 1 + [False] * 1 + [True] * 7 + [False] * 12
    b = [True] * 1 + [True] * 1 + [False] * 7 + [False] * 12
    result = statistics.paired_difference(a, b)
    assert (result.gained, result.lost) == (1, 7)
    assert result.difference.value == pytest.approx(-6 / 21)
    assert result.difference.interval == pytest.approx((-0.508, -0.013), abs=1e-3)
    assert result.p_value == pytest.approx(0.0703125)


def test_paired_difference_of_equal_models_is_zero_with_an_interval():
    result = statistics.paired_difference([True, False] * 50, [True, False] * 50)
    assert result.difference.value == 0
    assert result.difference.interval[0] < 0 < result.difference.interval[1]
    assert result.p_value == 1


def test_bootstrap_is_seeded_and_close_to_the_t_interval():
    generator = numpy.random.default_rng(3)
    samples = generator.normal(10, 2, 400)
    first = statistics.bootstrap(samples, numpy.mean)
    assert first == statistics.bootstrap(samples, numpy.mean)
    assert first.interval == pytest.approx(statistics.mean_interval(list(samples)).interval, abs=0.03)


def test_bootstrap_draws_whole_rows():
    rows = numpy.stack([numpy.arange(50.0), numpy.arange(50.0) + 1], axis=1)
    estimate = statistics.bootstrap(rows, lambda pairs: float((pairs[:, 1] - pairs[:, 0]).mean()))
    assert estimate.interval == (1, 1)


@pytest.mark.parametrize(
    "call",
    [
        lambda: statistics.quantile([], 0.5),
        lambda: statistics.mean_interval([]),
        lambda: statistics.wilson(3, 2),
        lambda: statistics.wilson(0, 0),
        lambda: statistics.paired_difference([True], []),
        lambda: statistics.t_quantile(1.0, 4),
        lambda: statistics.bootstrap([], numpy.mean),
    ],
)
def test_nothing_to_estimate_is_a_value_error(call):
    with pytest.raises(ValueError, match=r"^(no|cannot) "):
        call()
