"""Batches: the same ones however many workers make them, and wherever a run was broken off."""

from __future__ import annotations

import itertools
import threading

import pytest
import torch
from torch import Tensor

from computekit.datasets import Split
from computekit.training.batches import Batches


def batches(workers: int) -> Batches:
    images = torch.rand(50, 1, 24, 24, generator=torch.Generator().manual_seed(1))
    return Batches(Split(images, torch.arange(50)), 8, True, 3, 1, workers=workers)


def epochs(made: Batches, count: int) -> list[tuple[Tensor, Tensor]]:
    return [batch for _ in range(count) for batch in made]


def same(one: list[tuple[Tensor, Tensor]], other: list[tuple[Tensor, Tensor]]) -> bool:
    return len(one) == len(other) and all(
        torch.equal(a, b) for pair in zip(one, other, strict=True) for a, b in zip(*pair, strict=True)
    )


@pytest.mark.parametrize("workers", [1, 3])
def test_workers_change_nothing_and_leave_no_threads(workers: int) -> None:
    threads = threading.active_count()
    made = batches(workers)
    assert same(epochs(made, 3), epochs(batches(0), 3))
    made.close()
    assert threading.active_count() == threads


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("seen", [0, 3, 7, 9])
def test_the_state_is_that_of_the_last_batch_handed_out(workers: int, seen: int) -> None:
    whole = epochs(batches(0), 2)
    first = batches(workers)
    for _ in itertools.islice(itertools.chain(first, first), seen):
        pass
    again = batches(workers)
    again.load_state(first.state())
    first.close()
    rest = epochs(again, 2)[: len(whole) - seen]
    again.close()
    assert same(rest, whole[seen:])
