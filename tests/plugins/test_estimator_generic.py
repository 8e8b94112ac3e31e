"""The roofline for modules that are no transformers, and the measurements behind its interval."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import replace
from importlib import resources
from pathlib import Path

import pytest
import torch

from computekit import flops
from computekit_estimator import accuracy, generic, hardware

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "generic_roofline.py"
SHIPPED = json.loads((resources.files("computekit_estimator") / "data" / "generic.json").read_text(encoding="utf-8"))


@pytest.mark.slow
def test_the_interval_is_that_of_the_estimates_of_today():
    """After a change of the roofline run benchmarks/generic_roofline.py again."""
    spec = importlib.util.spec_from_file_location("generic_roofline", BENCHMARK)
    benchmark = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(benchmark)
    known = {name: value for name, value in SHIPPED["device"].items() if name != "name"}
    device = replace(hardware.find("T4"), year=2020, measured=True, **known)
    today = benchmark.predict(device)
    assert {row["model"] for row in SHIPPED["rows"]} == set(today)
    for row in SHIPPED["rows"]:
        assert row["predicted_s"] == pytest.approx(today[row["model"]], rel=0.02)


def test_the_interval_holds_nine_of_ten_measurements():
    bound = accuracy.generic()
    inside = [bound.low <= row["measured_s"] / row["predicted_s"] <= bound.high for row in SHIPPED["rows"]]
    assert 0.85 <= sum(inside) / len(inside) < 1
    assert bound.low < 1 < bound.high < 4


def test_a_recurrent_layer_is_one_kernel_and_reads_its_weights_once():
    lstm = torch.nn.LSTM(64, 128, 2, batch_first=True)
    short, long = (flops.count(lstm, torch.zeros(4, steps, 64), backward=False) for steps in (8, 64))
    assert long.forward == 8 * short.forward
    assert long.moved_bytes < 8 * short.moved_bytes
    assert long.by_op["lstm"].forward_kernels == 1
    assert sum(op.forward_kernels for op in long.by_op.values()) == sum(
        op.forward_kernels for op in short.by_op.values()
    )


def test_tensors_that_fit_in_the_cache_move_faster():
    cost = flops.count(torch.nn.Sequential(*[torch.nn.ReLU() for _ in range(8)]), torch.zeros(64, 1024))
    plain = hardware.find("L40S")
    without = replace(plain, cache_bytes=0.0)
    assert generic.passes(cost, plain, "fp32").forward < generic.passes(cost, without, "fp32").forward
