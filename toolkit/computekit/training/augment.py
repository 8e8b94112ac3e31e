"""Random changes of training images."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def shift(images: Tensor, generator: torch.Generator) -> Tensor:
    """Move each of ``images`` (N, C, H, W) by up to a twelfth of its size (at least 1 pixel); zeros move in."""
    count, _, height, width = images.shape
    reach = max(1, min(height, width) // 12)
    padded = F.pad(images, (reach,) * 4)
    offsets = torch.randint(0, 2 * reach + 1, (2, count, 1), generator=generator)
    rows = (torch.arange(height) + offsets[0])[:, None, :, None]
    columns = (torch.arange(width) + offsets[1])[:, None, None, :]
    samples = torch.arange(count)[:, None, None, None]
    channels = torch.arange(images.shape[1])[None, :, None, None]
    return padded[samples, channels, rows, columns]
