"""The operation that overflows in half precision is found and named."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from computekit.inputs import Input
from computekit_benchmark import numerics
from computekit_benchmark.jobs import Job, Subject


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


@given(st.lists(st.floats(-1e4, 1e4, width=32).filter(lambda x: x == 0 or abs(x) > 1e-20), min_size=1, max_size=40))
def test_e4m3_keeps_the_largest_and_the_sign_and_errs_by_a_sixteenth_at_most(values):
    x = torch.tensor(values)
    rounded = numerics.to_e4m3(x)
    top = float(x.abs().max())
    normal = x.abs() >= top / 448 * 2**-6  # below it the grid is even
    assert rounded.abs().max() == pytest.approx(top, rel=1e-6)
    assert ((rounded - x).abs()[normal] <= x.abs()[normal] / 16 * (1 + 1e-5)).all()
    assert (rounded * x >= 0).all()


def test_fp8_rounds_the_operands_of_products_only():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16), nn.Conv1d(1, 4, 1), nn.Flatten())
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    assert numerics.round_products(module) == 2
    changed = {name for name, tensor in module.state_dict().items() if not torch.equal(tensor, before[name])}
    assert changed == {"0.weight", "2.weight"}
    x = torch.rand(2, 1, 16)
    assert torch.equal(module[0](x), nn.functional.linear(numerics.to_e4m3(x), module[0].weight, module[0].bias))
    assert set(numerics.trace(module, (x,)).outputs) == {"0", "1", "2", "3"}
    assert numerics.round_products(nn.Sequential(nn.Embedding(4, 4))) == 0


def test_a_precision_in_which_the_model_cannot_run_does_not_hide_the_others(tmp_path, monkeypatch):
    (tmp_path / "picky.py").write_text(
        "import torch\n"
        "class Picky(torch.nn.Linear):\n"
        "    def forward(self, x):\n"
        "        if x.dtype == torch.float16: raise RuntimeError('no fp16')\n"
        "        return super().forward(x)\n"
        "def build(): return Picky(4, 4)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    job = Job("numerics", (Subject("m", None, "picky:build"),), inputs=(Input((4,)),), more={"batch": 1})
    report = numerics.run(job)
    assert report["fp16"]["failed"] == "a call in fp16 failed with RuntimeError: no fp16"
    assert report["bf16"]["layers"] and report["fp8"]["layers"]
    assert "m: a call in fp16 failed" in numerics.describe("m", report)
