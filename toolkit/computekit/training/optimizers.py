"""Optimizers and the learning-rate schedule. Importing this imports torch."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import nn

from .lamb import Lamb


def optimizer_for(module: nn.Module, name: str, lr: float, weight_decay: float) -> torch.optim.Optimizer:
    """The optimizer called ``name`` over the trainable parameters; biases and norms are not decayed."""
    trained = [p for p in module.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.ndim > 1], "weight_decay": weight_decay},
        {"params": [p for p in trained if p.ndim <= 1], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    if name == "sgd":
        return torch.optim.SGD(groups, lr=lr, momentum=0.9, nesterov=True)
    if name == "lamb":
        return Lamb(groups, lr=lr)
    return torch.optim.AdamW(groups, lr=lr)


def cosine(warmup: float, steps: int) -> Callable[[int], float]:
    """Factor of the learning rate at each of ``steps`` steps: a linear rise, then a cosine down to 0.

    Loshchilov and Hutter 2017, arXiv:1608.03983, without restarts.
    """
    warm = max(1, round(warmup * steps))

    def factor(step: int) -> float:
        if step < warm:
            return (step + 1) / warm
        return 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm)))

    return factor
