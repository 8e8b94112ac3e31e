"""A trial: what it returns, what it refuses, and that compiled models stay compiled."""

from __future__ import annotations

import mmap
import time

import pytest
import torch
from torch import nn

from computekit.inputs import Input
from computekit_benchmark import compiling, isolated, memory, timing
from computekit_benchmark.jobs import Job, Subject
from computekit_benchmark.loading import ModelFault

CPU = torch.device("cpu")


def job(**more: object) -> Job:
    subjects = tuple(Subject(f"depth {d}", None, "computekit_benchmark.workloads:mlp", {"depth": d}) for d in (1, 2, 3))
    settings = {"batches": [2, 4], "seconds": 0.02, "clock": "wall", **more}
    settings["longest_s"] = [60] * len(settings["batches"])
    return Job("trial", subjects, inputs=(Input((256,)),), more=settings)


def test_every_model_is_visited_equally_often_at_every_batch_size():
    result = timing.trial(job())
    assert list(result["batches"]) == ["2", "4"]
    for models in result["batches"].values():
        visits = [len(model["visits"]) for model in models]
        assert len(set(visits)) == 1
        assert visits[0] % 2 == 0
        assert visits[0] >= 2 * timing.MIN_ROUNDS
        assert all(second > 0 for model in models for visit in model["visits"] for second in visit)
        assert all(model["first_call_s"] > 0 and len(model["warm_up_s"]) >= 3 for model in models)


def test_the_order_of_creation_depends_on_the_seed():
    orders = {tuple(timing.trial(job(batches=[1]).but(seed=seed))["order"]) for seed in range(6)}
    assert len(orders) > 1


def test_rounds_go_forwards_and_backwards():
    calls: list[str] = []
    runners = []
    for name in "abc":
        runner = timing.Runner(name, lambda name=name: calls.append(name), warm_up_s=[timing.LONG_CALL_S])
        runners.append(runner)

    def timer(call, count):
        call()
        return [1.0] * count

    timing.interleave(runners, 0.0, timer, timing.random.Random(0))
    rounds = ["".join(calls[i : i + 6]) for i in range(0, len(calls), 6)]
    assert len(rounds) == timing.MIN_ROUNDS
    assert all(r == r[::-1] and set(r) == set("abc") for r in rounds)


def test_a_further_batch_size_that_fails_is_left_out_and_named(monkeypatch):
    def only_two(model, job, batch):
        if batch != 2:
            raise RuntimeError("only pairs")
        return (torch.zeros(batch, 256),)

    monkeypatch.setattr(timing, "example_inputs", only_two)
    result = timing.trial(job())
    assert list(result["batches"]) == ["2"]
    assert "only pairs" in result["failures"]["4"]
    with pytest.raises(ModelFault, match="batch size 4 failed with RuntimeError: only pairs"):
        timing.trial(job(batches=[4, 2]))


def test_a_batch_size_for_which_there_is_no_time_is_left_out():
    slow = job()
    result = timing.trial(slow.but(more={**slow.more, "longest_s": [60, 0.0]}))
    assert list(result["batches"]) == ["2"]
    assert "there is time for calls of 0 s; give more --time-budget" in result["failures"]["4"]


def test_a_long_round_stands_alone():
    runners = [timing.Runner(name, lambda: None, warm_up_s=[10.0]) for name in "ab"]
    timing.interleave(runners, 0.0, lambda _call, calls: [10.0] * calls, timing.random.Random(0))
    assert [len(runner.visits) for runner in runners] == [2, 2]


def test_one_call_that_outlasts_the_budget_is_refused():
    runner = timing.Runner("sloth", lambda: time.sleep(0.02))
    with pytest.raises(ModelFault, match=r"sloth: one call takes .* there is time for calls of 0.01 s; give more"):
        timing.warm_up(runner, CPU, 0.1, 0.01, "give more")


def test_odd_outputs_are_found_wherever_they_are():
    calls = []

    def call():
        calls.append(None)
        nan = torch.tensor([float("nan"), 1j]) if len(calls) == 3 else torch.zeros(2)
        return {"logits": torch.zeros(1, 1 + (len(calls) == 4)), "more": [nan, None, torch.zeros(2, dtype=torch.int8)]}

    assert isolated._output(call) == {"output_shape": [1, 1], "nonfinite": 1, "other_shape": [1, 2]}
    fp8 = torch.zeros(2).to(torch.float8_e4m3fn)
    assert isolated._output(lambda: (fp8, None)) == {"output_shape": [2], "nonfinite": 0}


@pytest.mark.skipif(not memory.can_reset_peak(), reason="needs /proc/self/clear_refs")
def test_a_leak_is_seen():
    kept = []

    def leak() -> None:
        kept.append(mmap.mmap(-1, 2_000_000))  # pages of its own, whatever the allocator has left over
        kept[-1].write(b"x" * 2_000_000)

    leaking = isolated._peak(leak, CPU, 0)[0]
    assert leaking["grows_bytes_per_call"] > 1_000_000
    assert isolated._peak(lambda: b"x" * 2_000_000, CPU, 0)[0]["grows_bytes_per_call"] < 100_000


@pytest.mark.slow
def test_the_ninth_model_of_a_class_is_compiled_too():
    versions: list[int] = []

    def backend(graph, _inputs):
        versions.append(1)
        return graph.forward

    class Model(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.layer = nn.Linear(width, width)

        def forward(self, x):
            return self.layer(x)

    torch._dynamo.reset()
    compiling.allow(12)
    for width in range(2, 14):
        torch.compile(Model(width), backend=backend, dynamic=False)(torch.zeros(1, width))
    assert len(versions) == 12
    torch._dynamo.reset()
