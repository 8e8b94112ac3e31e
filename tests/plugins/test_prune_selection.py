"""Which channels are the least important, and how many of each layer go."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from computekit_prune import criteria
from computekit_prune.coupling import Coupled, Member
from computekit_prune.selection import ranked, scores, uniform


def group(channels: int, blocks: int = 1, alike: bool = False) -> Coupled:
    return Coupled("layer", channels, [], lambda _gone: None, blocks, alike)


def test_uniform_removes_the_lowest_scores() -> None:
    assert uniform([group(4)], [torch.tensor([3.0, 1.0, 4.0, 2.0])], 0.5, 1) == [[1, 3]]


def test_heads_lose_their_own_lowest_channels() -> None:
    score = torch.tensor([1.0, 2.0, 3.0, 9.0, 8.0, 7.0])
    assert uniform([group(6, blocks=2)], [score], 1 / 3, 1) == [[0, 5]]


def test_groups_of_a_convolution_lose_the_same_places() -> None:
    weights = torch.tensor([[1.0], [2.0], [3.0], [9.0], [8.0], [1.0]])
    member = Member("layer", True, torch.arange(6), torch.arange(6), weights)
    coupled = Coupled("layer", 6, [member], lambda _gone: None, 2, alike=True)
    score = scores(coupled, criteria.find("l1"))
    assert score.tolist() == [5.0, 5.0, 2.0, 5.0, 5.0, 2.0]
    assert uniform([coupled], [score], 1 / 3, 1) == [[2, 5]]


def test_global_ranking_takes_more_from_the_less_important_layer_but_never_all() -> None:
    flat, spread = torch.ones(10), torch.tensor([0.0] * 9 + [10.0])
    assert ranked([group(10), group(10)], [flat, spread], 0.45, 1) == [[], list(range(9))]
    first, second = ranked([group(10), group(10)], [torch.arange(10.0), torch.arange(10.0)], 0.99, 1)
    assert len(first) == len(second) == 9


@given(st.integers(1, 4), st.integers(1, 40), st.floats(0.01, 0.99), st.sampled_from([1, 2, 3, 8, 16]), st.booleans())
def test_what_is_left_is_rounded_up_and_equal_in_all_blocks(
    blocks: int, size: int, ratio: float, round_to: int, everywhere: bool
) -> None:
    channels = blocks * size
    select = ranked if everywhere else uniform
    (gone,) = select([group(channels, blocks)], [torch.rand(channels)], ratio, round_to)
    left = channels - len(gone)
    assert left >= 1 and len(set(gone)) == len(gone)
    assert left % round_to == 0 or left == channels
    counts = [sum(block * size <= place < (block + 1) * size for place in gone) for block in range(blocks)]
    assert len(set(counts)) == 1
    if not everywhere:
        assert left >= channels * (1 - ratio) - 1e-6


@pytest.mark.parametrize(("name", "expected"), [("l1", [3.0, 3.0]), ("l2", [5.0, 9.0])])
def test_criteria(name: str, expected: list[float]) -> None:
    assert criteria.find(name).score(torch.tensor([[1.0, -2.0], [0.0, 3.0]])).tolist() == expected


def test_taylor_is_the_squared_first_order_change() -> None:
    """Without the channel, the loss changes by about minus the sum of weight times gradient."""
    weights, gradients = torch.tensor([[1.0, 2.0], [3.0, 0.0]]), torch.tensor([[0.5, -1.0], [2.0, 9.0]])
    criterion = criteria.find("taylor")
    assert criterion.score(weights, gradients).tolist() == [2.25, 36.0]
    member = Member("layer", True, torch.arange(2), torch.arange(2), weights, gradients)
    assert scores(Coupled("layer", 2, [member], lambda _gone: None), criterion).tolist() == [2.25, 36.0]
