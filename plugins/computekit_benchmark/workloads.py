"""Synthetic models of four kinds, for testing the measurement itself.

Each repeats one layer ``depth`` times, so that 21 layers do exactly 5 % more work than 20 with the same kernels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

DEPTH = 20


@dataclass(frozen=True)
class Workload:
    """A factory of this module and the input of one call."""

    name: str
    input_shape: tuple[int, ...]
    batch: int

    @property
    def arch(self) -> str:
        return f"{__name__}:{self.name}"


WORKLOADS = (
    Workload("mlp", (256,), 16),
    Workload("transformer", (64, 64), 1),
    Workload("convnet", (16, 24, 24), 1),
    Workload("memory_bound", (1 << 18,), 1),
)


def mlp(depth: int = DEPTH) -> nn.Module:
    """Small matrix products, mostly overhead."""
    from torch import nn

    return nn.Sequential(*(layer for _ in range(depth) for layer in (nn.Linear(256, 256), nn.ReLU())))


def transformer(depth: int = DEPTH) -> nn.Module:
    """Encoder layers of width 64 over 64 tokens."""
    from torch import nn

    return nn.Sequential(*(nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True) for _ in range(depth)))


def convnet(depth: int = DEPTH) -> nn.Module:
    """3x3 convolutions of 16 channels."""
    from torch import nn

    return nn.Sequential(*(layer for _ in range(depth) for layer in (nn.Conv2d(16, 16, 3, padding=1), nn.ReLU())))


def memory_bound(depth: int = DEPTH) -> nn.Module:
    """One multiply per element read and written."""
    import torch
    from torch import nn

    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.factor = nn.Parameter(torch.ones(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.factor

    return nn.Sequential(*(Scale() for _ in range(depth)))
