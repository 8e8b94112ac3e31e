"""``computekit train`` killed at any moment, and shared among processes."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from computekit import records

pytestmark = pytest.mark.slow

TEXT = b"The quick brown fox jumps over the lazy dog. " * 120
GPT = ["--arch", "gpt", "--arch-args", "dim=32,depth=2,heads=2", "--data", "t.txt", "--epochs", "2"]


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("t.txt").write_bytes(TEXT)


def _train(*words: str) -> list[str]:
    return [sys.executable, "-m", "computekit", "train", *words]


def _torchrun(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _losses(record: records.Record) -> list[float]:
    return [epoch["loss"] for epoch in record.details["history"]]


def _checked(done: subprocess.CompletedProcess[Any]) -> None:
    assert done.returncode == 0, done.stderr


def test_killed_at_any_moment_it_goes_on_to_the_same_bytes() -> None:
    words = ["--arch", "resnet", "--arch-args", "width=8", "--data", "digits", "--epochs", "8", "--threads", "1"]
    _checked(subprocess.run(_train(*words, "-o", "straight.pt"), capture_output=True, check=False))
    resumed = _train(*words, "-o", "killed.pt", "--resume", "--checkpoint-every", "3")
    moments = random.Random(0)
    kills = 0
    for _ in range(20):
        process = subprocess.Popen(resumed, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        deadline = time.monotonic() + 120
        while not Path("killed.pt.checkpoint").exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(moments.uniform(0, 1.5) if kills else 0)
        if process.poll() is None and kills < 3:
            process.send_signal(signal.SIGKILL)
            kills += 1
        _, errors = process.communicate()
        if process.returncode == 0:
            break
        assert process.returncode == -signal.SIGKILL, errors
        assert not Path("killed.pt").exists()
    assert kills >= 1
    assert Path("killed.pt").read_bytes() == Path("straight.pt").read_bytes()
    assert not Path("killed.pt.checkpoint").exists()
    straight, killed = (records.load(f"{name}.pt.record.json") for name in ("straight", "killed"))
    assert _losses(killed) == pytest.approx(_losses(straight), rel=1e-6)


@pytest.fixture(scope="module")
def one_rank(tmp_path_factory: pytest.TempPathFactory) -> records.Record:
    """The record of the same training in one process."""
    folder = tmp_path_factory.mktemp("one")
    (folder / "t.txt").write_bytes(TEXT)
    _checked(subprocess.run(_train(*GPT, "-o", "one.pt"), capture_output=True, cwd=folder, check=False))
    return records.load(folder / "one.pt.record.json")


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_two_ranks_killed_and_resumed_learn_what_one_learns(kind: str, one_rank: records.Record) -> None:
    # the first rank dies as soon as it has written a checkpoint, and torchrun ends the other one
    Path("dying.py").write_text(
        "import os\nfrom computekit.cli import main\nfrom computekit.training import checkpoint\n"
        "save = checkpoint.save\n"
        "def dying(*state):\n    save(*state)\n    os._exit(9)\n"
        "checkpoint.save = dying\nmain()\n"
    )
    words = ["train", *GPT, "--parallel", kind, "--resume", "--checkpoint-every", "5", "-o", "two.pt"]
    assert _torchrun("dying.py", *words).returncode != 0
    assert Path("two.pt.checkpoint").exists() and not Path("two.pt").exists()
    done = _torchrun("-m", "computekit", *words)
    assert done.returncode == 0, done.stderr
    record = records.load("two.pt.record.json")
    assert _losses(record) == pytest.approx(_losses(one_rank), rel=1e-4)
    one, two = one_rank.rows[0].quantities, record.rows[0].quantities
    assert two["perplexity"].value == pytest.approx(one["perplexity"].value, rel=1e-3)
    assert two["train_flops"].value == one["train_flops"].value
    assert (two["train_communication_s"].value is None) == (kind == "fsdp")
    assert sorted(p.name for p in Path().iterdir()) == ["dying.py", "t.txt", "two.pt", "two.pt.record.json"]


def test_shards_in_fp16_learn_what_one_rank_learns(one_rank: records.Record) -> None:
    done = _torchrun("-m", "computekit", "train", *GPT, "--parallel", "fsdp", "--precision", "fp16", "-o", "two.pt")
    _checked(done)
    assert _losses(records.load("two.pt.record.json")) == pytest.approx(_losses(one_rank), rel=1e-2)


SCALER = """
import torch
import torch.distributed as dist
from computekit.training.parallel import Ranks

dist.init_process_group("gloo")
ranks = Ranks("fsdp", dist.get_rank(), 2)
torch.manual_seed(0)
module = ranks.wrap(torch.nn.Linear(8, 4), torch.device("cpu"))
optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
scaler.scale(module(torch.ones(2, 8)).sum()).backward()
if ranks.rank == 1:
    module.weight.grad.to_local().fill_(float("inf"))
before = module.weight.to_local().clone()
scaler.step(optimizer)
scaler.update()
assert torch.equal(before, module.weight.to_local()) and scaler.get_scale() == 2.0
dist.destroy_process_group()
"""


def test_an_overflow_in_one_shard_makes_every_rank_skip_the_step() -> None:
    Path("scaler.py").write_text(SCALER)
    _checked(_torchrun("scaler.py"))
