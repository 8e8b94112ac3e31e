"""What the measuring process survives: threads and processes that a model leaves running, and models that end it."""

from __future__ import annotations

import textwrap
import time

import pytest
import torch

from computekit import Data, Split
from computekit.inputs import Input
from computekit_benchmark import jobs, samples
from computekit_benchmark.jobs import Job, JobFailed, Subject

UNRULY = """
    import os, signal, sys, threading, time
    import torch
    from torch import nn

    class Unruly(nn.Module):
        def __init__(self, what):
            super().__init__()
            self.what, self.layer = what, nn.Linear(4, 4)

        def forward(self, x):
            if "on the test split" in self.what and len(x) > 1:
                if "hangs" in self.what:
                    time.sleep(600)
                if "dies" in self.what:
                    os.kill(os.getpid(), signal.SIGKILL)
                if "exits" in self.what:
                    os._exit(0 if "quietly" in self.what else 3)
                return x * float("nan")
            if self.what == "exits":
                sys.exit("enough")
            if not hasattr(self, "left"):
                self.left = threading.Thread(target=time.sleep, args=(600,))
                self.left.start()
                if os.fork() == 0:
                    time.sleep(600)
            if self.what == "dies":
                os.kill(os.getpid(), signal.SIGKILL)
            print("chatter")
            return self.layer(x)
"""


@pytest.fixture
def asked(tmp_path, monkeypatch):
    """``asked(what)`` is a job about an `Unruly` model."""
    (tmp_path / "unruly.py").write_text(textwrap.dedent(UNRULY))
    monkeypatch.syspath_prepend(str(tmp_path))

    def make(what: str) -> Job:
        subject = Subject("m", None, "unruly:Unruly", {"what": what})
        more = {"batches": [1], "seconds": 0.01, "clock": "wall", "longest_s": [60]}
        return Job("trial", (subject,), threads=1, inputs=(Input((4,)),), more=more)

    return make


@pytest.mark.slow
def test_what_a_model_leaves_running_is_ended_and_the_result_counts(asked, monkeypatch):
    monkeypatch.setattr(jobs, "STARTUP_ALLOWANCE_S", 300.0)
    started = time.monotonic()
    result = jobs.run(asked("leaves things running"), 60)
    assert result["batches"]["1"][0]["visits"]
    assert time.monotonic() - started < 300


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "said", "fatal"),
    [
        ("dies", "m: the measuring process was ended by SIGKILL", False),
        ("exits", "m: a call with batch size 1 failed with SystemExit: enough", True),
    ],
)
def test_a_model_that_ends_the_process_is_named(asked, what, said, fatal):
    with pytest.raises(JobFailed) as caught:
        jobs.run(asked(what), 60)
    assert str(caught.value).startswith(said)
    assert caught.value.fatal == fatal


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "cut"),
    [
        ("gives NaN on the test split", "m gives NaN or infinite outputs"),
        ("hangs on the test split", "no result after 40 s"),
        ("dies on the test split", "ended by SIGKILL"),
        ("exits on the test split", "ended with status 3"),
        ("exits quietly on the test split", ""),
    ],
)
def test_a_test_split_that_fails_costs_the_metric_alone(asked, tmp_path, monkeypatch, what, cut):
    monkeypatch.setattr(jobs, "STARTUP_ALLOWANCE_S", 0.0)
    split = Split(torch.rand(20, 4), torch.zeros(20, dtype=torch.int64))
    used = samples.save(Data("d", "classification", split, split, split, 4, "here"), tmp_path / "samples.pt")
    job = asked(what).but(task="isolated", samples=used, more={"batch": 1, "longest_s": 60})
    result = jobs.run(job, 40 if "hangs" in what else 300)
    assert result["output_shape"] == [1, 4] and "quantity" not in result
    assert cut in result.get("cut", "")
