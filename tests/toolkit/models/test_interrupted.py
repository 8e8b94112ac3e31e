"""A write that is killed at a random moment leaves the old file or the new one, whole."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from computekit import files, open_model, rewrite

KILLS = 50


def write_forever(source: Path, target: Path) -> None:
    """Write two versions of a model over each other, again and again."""
    opened = open_model(source)
    while True:
        for factor in (1.0, 2.0):
            with files.atomic(target) as temporary:
                rewrite(opened, temporary, lambda info, load, by=factor: [(info.name, load() * by)])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["torch", "safetensors", "sharded", "folder"])
def test_killed_writes(kind: str, tmp_path: Path) -> None:
    state = {f"layer.{i}.weight": torch.ones(64, 64) for i in range(20)}
    source, target = tmp_path / "source", tmp_path / "target"
    if kind == "torch":
        torch.save(state, source)
    elif kind == "safetensors":
        save_file(state, source)
    elif kind == "sharded":
        source, target = tmp_path / "source.safetensors.index.json", tmp_path / "target.safetensors.index.json"
        names = list(state)
        for file, part in (("a.safetensors", names[:9]), ("b.safetensors", names[9:])):
            save_file({name: state[name] for name in part}, tmp_path / file)
        where = {name: "a.safetensors" if i < 9 else "b.safetensors" for i, name in enumerate(names)}
        source.write_text(json.dumps({"weight_map": where}))
    else:
        source.mkdir()
        (source / "config.json").write_text("{}")
        save_file(state, source / "model.safetensors")
    whole = set()
    for factor in (1.0, 2.0):
        with files.atomic(target) as temporary:
            rewrite(open_model(source), temporary, lambda info, load, by=factor: [(info.name, load() * by)])
        whole.add(files.sha256(target))
    context = multiprocessing.get_context("fork")
    rng, seen = random.Random(0), set()
    for _ in range(KILLS):
        child = context.Process(target=write_forever, args=(source, target))
        child.start()
        time.sleep(rng.uniform(0.0, 0.2))
        assert child.pid is not None
        os.kill(child.pid, signal.SIGKILL)
        child.join()
        assert len(open_model(target).tensors) == len(state)
        seen.add(files.sha256(target))
    assert seen <= whole
