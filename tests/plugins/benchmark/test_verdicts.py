"""The trial rule: verdicts from log ratios, and how often it errs on noise that is worse than normal."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from computekit_benchmark import verdicts


@pytest.mark.parametrize(
    ("centre", "spread", "expected"),
    [(-0.10, 0.005, "faster"), (0.10, 0.005, "slower"), (0.0, 0.005, "same"), (0.0, 0.05, "unresolved"),
     (0.02, 0.005, "unresolved")],
)  # fmt: skip
def test_verdict_follows_the_interval_and_the_margin(centre, spread, expected):
    values = [centre + spread * x for x in (-1, -0.5, 0, 0.5, 1)]
    assert verdicts.judge(values)[0] == expected


@given(st.lists(st.floats(-0.5, 0.5), max_size=verdicts.MIN_TRIALS - 1, min_size=1))
def test_fewer_than_five_trials_never_resolve(values):
    assert verdicts.judge(values)[0] == "unresolved"


@given(st.lists(st.floats(-0.2, 0.2), min_size=5, max_size=20), st.floats(0.001, 0.2))
def test_swapping_the_models_mirrors_the_verdict(values, margin):
    mirror = {"faster": "slower", "slower": "faster"}
    forward = verdicts.judge(values, margin)[0]
    assert verdicts.judge([-value for value in values], margin)[0] == mirror.get(forward, forward)


def test_trial_value_is_blind_to_drift():
    # the machine slows down by 1 % with every visit; B takes 5 % longer than A in each
    pace = [1.01**i for i in range(12)]
    order = ["a", "b", "b", "a"] * 3
    visits = {"a": [], "b": []}
    for speed, who in zip(pace, order, strict=True):
        visits[who].append([speed * (1.05 if who == "b" else 1.0)])
    assert verdicts.trial_value(visits["a"], visits["b"]) == pytest.approx(math.log(1.05), abs=1e-4)


@pytest.mark.parametrize("noise", ["normal", "heavy"])
def test_sequential_looks_call_a_model_different_from_itself_in_at_most_one_of_80(noise):
    generator = random.Random(5)

    def draw(scale: float) -> float:
        heavy = noise == "heavy" and generator.random() < 0.1
        return generator.gauss(0, 6 * scale if heavy else scale)

    false = tries = 0
    for scale in (0.005, 0.01, 0.02, 0.05):
        for _ in range(100):
            values = [draw(scale) for _ in range(verdicts.MIN_TRIALS)]
            while (verdict := verdicts.judge(values)[0]) == "unresolved" and len(values) < 15:
                values.append(draw(scale))
            false += verdict in ("faster", "slower")
            tries += 1
    assert false / tries <= 1 / 80


def test_comparison_gives_ratios_not_logarithms():
    c = verdicts.compare("a", "b", [math.log(1.1)] * 5, margin=0.02, clock="wall", batch_size=4)
    assert (c.verdict, c.trials, c.margin, c.clock, c.batch_size) == ("slower", 5, 0.02, "wall", 4)
    assert c.ratio == pytest.approx(1.1)
    assert c.interval == pytest.approx((1.1, 1.1))
    assert c.values == pytest.approx([1.1] * 5)
