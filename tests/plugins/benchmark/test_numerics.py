"""The operation that overflows in half precision is found and named."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from computekit_benchmark import numerics


class NaiveSoftmax(nn.Module):
    """exp(x) / sum exp(x) without subtracting the maximum: overflows in fp16 above 11.09."""

    def forward(self, x):
        e = x.exp()
        return e / e.sum(-1, keepdim=True)


class LongSum(nn.Module):
    def forward(self, x):
        return x.sum(-1)


def traced(module, inputs, dtype):
    return numerics.trace(module.to(dtype), (inputs.to(dtype),))


def test_a_softmax_without_its_maximum_overflows_in_exp():
    module = nn.Sequential(nn.Identity(), NaiveSoftmax())
    x = torch.full((2, 4), 12.0)
    assert traced(module, x, torch.float32).faults == []
    fault = traced(module, x, torch.float16).faults[0]
    assert (fault["op"], fault["module"], fault["nonfinite"], fault["of"]) == ("exp", "1", 8, 8)
    assert fault["largest_input"] == pytest.approx(12.0)
    assert traced(module, x, torch.bfloat16).faults == []


def test_a_long_sum_overflows_in_sum():
    fault = traced(LongSum(), torch.full((1, 70_000), 1.0), torch.float16).faults[0]
    assert fault["op"] == "sum"
    assert fault["module"] == "the model itself"


def test_only_the_operation_where_it_begins_is_named():
    module = nn.Sequential(NaiveSoftmax(), nn.Linear(4, 4), nn.ReLU())
    faults = traced(module, torch.full((1, 4), 12.0), torch.float16).faults
    assert [fault["op"] for fault in faults] == ["exp"]


def test_layers_are_compared_element_by_element():
    exact = torch.tensor([1.0, 1e-9, 1e6, 3.0])
    found = numerics.compare("layer", exact, exact.half())
    assert (found["overflow"], found["underflow"], found["elements"]) == (1, 1, 4)
    assert found["relative_error"] < 1e-8


def test_the_hooks_are_gone_afterwards():
    module = nn.Sequential(nn.Linear(4, 4))
    numerics.trace(module, (torch.zeros(1, 4),))
    assert not module[0]._forward_hooks
    assert not module[0]._forward_pre_hooks
