"""The modules behind `computekit.zoo`. Importing this imports torch."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .errors import ComputekitError


class MLP(nn.Module):
    """(N, ...) -> (N, classes): ``depth`` hidden layers of ``hidden`` units on the flattened input."""

    def __init__(self, in_features: int, classes: int, hidden: int, depth: int) -> None:
        super().__init__()
        sizes = [in_features, *[hidden] * depth]
        self.hidden = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(sizes))
        self.head = nn.Linear(sizes[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        for layer in self.hidden:
            x = F.relu(layer(x))
        logits: Tensor = self.head(x)
        return logits


class ResidualBlock(nn.Module):
    """(N, C, H, W) -> (N, out, H/stride, W/stride): two 3x3 convolutions and a shortcut (He et al. 2016)."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(out_channels)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or in_channels != out_channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(in_channels, out_channels, 1, stride, bias=False), nn.BatchNorm2d(out_channels)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        return F.relu(y + self.shortcut(x))


class ResNet(nn.Module):
    """(N, C, H, W) -> (N, classes): stages of residual blocks, each half the size and twice the width of the last."""

    def __init__(self, in_channels: int, classes: int, width: int, blocks: Sequence[int], stem_stride: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(in_channels, width, 3, stem_stride, 1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        stages: list[nn.Module] = []
        channels = width
        for stage, count in enumerate(blocks):
            out = width * 2**stage
            for block in range(count):
                stages.append(ResidualBlock(channels, out, 2 if stage > 0 and block == 0 else 1))
                channels = out
        self.blocks = nn.Sequential(*stages)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.stem(x)))
        x = self.pool(self.blocks(x)).flatten(1)
        logits: Tensor = self.head(x)
        return logits


class Attention(nn.Module):
    """(N, T, D) -> (N, T, D): multi-head attention with one Linear each for q, k, v and the output."""

    def __init__(self, dim: int, heads: int, causal: bool) -> None:
        super().__init__()
        if dim % heads:
            raise ComputekitError(f"dim {dim} is not a multiple of heads {heads}")
        self.heads = heads
        self.causal = causal
        self.q = nn.Linear(dim, dim)
        self.k = nn.Linear(dim, dim)
        self.v = nn.Linear(dim, dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        # (N, T, heads * d) -> (N, heads, T, d); d is read off the weights, so that pruned heads still fit
        q, k, v = (layer(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        mixed: Tensor = self.out(y.transpose(1, 2).flatten(2))
        return mixed


class FeedForward(nn.Module):
    """(N, T, D) -> (N, T, D): two Linear layers, four times wider in between."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.up = nn.Linear(dim, 4 * dim)
        self.down = nn.Linear(4 * dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down(F.gelu(self.up(x)))
        return y


class TransformerBlock(nn.Module):
    """(N, T, D) -> (N, T, D): attention and feed-forward, each after a LayerNorm and with a residual path."""

    def __init__(self, dim: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.attention = Attention(dim, heads, causal)
        self.norm2 = nn.LayerNorm(dim)
        self.feed_forward = FeedForward(dim)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        y: Tensor = x + self.feed_forward(self.norm2(x))
        return y


class ViT(nn.Module):
    """(N, C, S, S) -> (N, classes): patches as tokens, mean over tokens instead of a class token."""

    def __init__(
        self, image_size: int, patch: int, in_channels: int, classes: int, dim: int, depth: int, heads: int
    ) -> None:
        super().__init__()
        if image_size % patch:
            raise ComputekitError(f"image_size {image_size} is not a multiple of patch {patch}")
        self.patches = nn.Conv2d(in_channels, dim, patch, patch)
        self.position = nn.Parameter(torch.zeros(1, (image_size // patch) ** 2, dim))
        self.blocks = nn.Sequential(*(TransformerBlock(dim, heads, causal=False) for _ in range(depth)))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, classes)
        nn.init.normal_(self.position, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2) + self.position
        x = self.norm(self.blocks(x)).mean(1)
        logits: Tensor = self.head(x)
        return logits


class GPT(nn.Module):
    """(N, T) token ids -> (N, T, vocab) logits; the output layer shares the token embedding (Radford et al. 2019)."""

    def __init__(self, vocab: int, context: int, dim: int, depth: int, heads: int) -> None:
        super().__init__()
        self.token = nn.Embedding(vocab, dim)
        self.position = nn.Embedding(context, dim)
        self.blocks = nn.Sequential(*(TransformerBlock(dim, heads, causal=True) for _ in range(depth)))
        self.norm = nn.LayerNorm(dim)
        self.lm_head = nn.Linear(dim, vocab, bias=False)
        self.lm_head.weight = self.token.weight
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                scale = (2 * depth) ** -0.5 if name.endswith(("out.weight", "down.weight")) else 1.0
                nn.init.normal_(parameter, std=0.02 * scale)

    def forward(self, tokens: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.token(tokens) + self.position(positions)
        logits: Tensor = self.lm_head(self.norm(self.blocks(x)))
        return logits
