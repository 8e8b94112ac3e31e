"""The roofline's arithmetic, and its chart."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest
import torch
from torch import nn

from computekit import Hardware
from computekit_benchmark import roofline, roofline_chart
from computekit_benchmark.roofline_chart import Point, Roof

CHIP = Hardware("chip", "gpu", {"fp32": 100e9}, 1e9, 10e9, "a test")


def test_the_roof_is_the_lower_of_its_two_slopes():
    roof = Roof.of(CHIP, "float32", "chip")
    assert roof.ridge == 10
    assert (roof.at(1), roof.at(10), roof.at(1000)) == (10e9, 100e9, 100e9)
    assert Roof.of(CHIP, "float16", "chip") is None


@pytest.mark.parametrize(
    ("flops", "unknown", "expected"),
    [(50, False, "memory"), (2000, False, "compute"), (0, False, "no arithmetic"), (0, True, "unknown")],
)
def test_what_bounds_an_operation(flops, unknown, expected):
    point = Point("op", 1, 1e-3, flops, 100, unknown)
    assert roofline_chart.bound(point, Roof("r", 100e9, 10e9)).startswith(expected)


def test_the_meter_counts_flops_and_bytes_of_a_matrix_product():
    a, b = torch.ones(8, 16), torch.ones(16, 32)
    meter = roofline._Meter(torch.device("cpu"))
    with torch.no_grad(), meter:
        a @ b
    group = meter.groups["mm"]
    assert (group["calls"], group["flops"]) == (1, 2 * 8 * 16 * 32)
    assert group["bytes"] == 4 * (8 * 16 + 16 * 32 + 8 * 32)
    assert group["seconds"] > 0


def test_the_meter_sees_every_operation_of_a_module():
    meter = roofline._Meter(torch.device("cpu"))
    with torch.no_grad(), meter:
        nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(3))(torch.ones(1, 1, 8, 8))
    assert {"convolution", "relu", "addmm"} <= set(meter.groups)
    assert meter.groups["convolution"]["flops"] == 2 * 2 * 9 * 36


def test_the_chart_is_well_formed_and_draws_each_operation_below_its_roofs():
    groups = {
        "mm<1>": {"calls": 1, "seconds": 1e-3, "flops": 50_000_000, "bytes": 1_000_000, "unknown": False},
        "empty": {"calls": 1, "seconds": 1e-4, "flops": 0, "bytes": 0, "unknown": False},
    }
    found = {"dtype": "float32", "groups": groups, "variants": {"eager": 1e-3}}
    roofs = [Roof("measured", 100e9, 10e9), Roof("datasheet", 200e9, 20e9)]
    tree = ElementTree.fromstring(roofline_chart.svg("a model", found, roofs))
    tags = [element.tag.rpartition("}")[2] for element in tree.iter()]
    assert tags.count("circle") == 1
    assert tags.count("polyline") == 2
    circle = next(e for e in tree.iter() if e.tag.endswith("circle"))
    top = min(float(y) for e in tree.iter() if e.tag.endswith("polyline") for _, y in
              (pair.split(",") for pair in e.get("points").split()))  # fmt: skip
    assert float(circle.get("cy")) > top
    assert "mm<1>" in roofline_chart.table(found, roofs[0])
