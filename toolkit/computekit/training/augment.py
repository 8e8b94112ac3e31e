"""Random changes of training images."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def draw_offsets(images: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """How far `shift` moves each of ``count`` images of the size of ``images`` (N, C, H, W): (2, count), rows first."""
    return torch.randint(0, 2 * _reach(images) + 1, (2, count), generator=generator)


def shift(images: Tensor, offsets: Tensor) -> Tensor:
    """Move each of ``images`` (N, C, H, W) by up to a twelfth of its size (at least 1 pixel); zeros move in."""
    count, channels, height, width = images.shape
    padded = F.pad(images, (_reach(images),) * 4)
    rows = (torch.arange(height) + offsets[0, :, None])[:, None, :, None]
    columns = (torch.arange(width) + offsets[1, :, None])[:, None, None, :]
    return padded[torch.arange(count)[:, None, None, None], torch.arange(channels)[None, :, None, None], rows, columns]


def _reach(images: Tensor) -> int:
    return max(1, min(images.shape[2:]) // 12)
