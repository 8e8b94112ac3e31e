"""Shifting images."""

from __future__ import annotations

import torch

from computekit.training.augment import draw_offsets, shift


def moved_by_chance(images: torch.Tensor, seed: int) -> torch.Tensor:
    return shift(images, draw_offsets(images, len(images), torch.Generator().manual_seed(seed)))


def test_images_move_within_reach_and_zeros_move_in() -> None:
    image = torch.zeros(1, 2, 28, 28)
    image[0, :, 14, 14] = 1
    moved = moved_by_chance(image.expand(400, 2, 28, 28), 0)
    assert torch.equal(moved[:, 0], moved[:, 1])
    places = moved[:, 0].nonzero()
    assert len(places) == 400
    offsets = {(int(row) - 14, int(column) - 14) for _, row, column in places}
    assert offsets == {(row, column) for row in range(-2, 3) for column in range(-2, 3)}
    corner = torch.ones(1, 1, 12, 12)
    assert {int(x.sum()) for x in moved_by_chance(corner.expand(50, 1, 12, 12), 1)} == {144, 132, 121}
