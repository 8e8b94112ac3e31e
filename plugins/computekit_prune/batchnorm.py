"""Batch normalization after pruning: the running statistics are those of the whole model, and must be taken anew.

Li et al. 2020 ("EagleEye") show that stale statistics, rather than the lost channels, are what brings a pruned network
down to chance. Importing this imports torch.
"""

from __future__ import annotations

import torch
from torch import nn

from computekit import evaluation
from computekit.datasets import Data

SAMPLES = 1024
"""Training samples that the statistics are taken over; the first of the split, so that they are the same each time."""

BATCH = 64


def recalibrate(module: nn.Module, data: Data, device: torch.device) -> int:
    """Take the running statistics of ``module``, which is on ``device``, anew; returns how many layers have some.

    They become the plain mean over batches of training data. No weight changes.
    """
    layers = [
        layer
        for layer in module.modules()
        if isinstance(layer, nn.modules.batchnorm._BatchNorm) and layer.track_running_stats
    ]
    if not layers:
        return 0
    momenta = [layer.momentum for layer in layers]
    module.eval()  # dropout stays off
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None  # the mean over all batches instead of a moving one
        layer.train()
    count = min(SAMPLES, len(data.train))
    with torch.no_grad():
        for start in range(0, count - count % BATCH or count, BATCH):
            evaluation.forward(module, data.train.inputs[start : start + BATCH].to(device), "the pruned model")
    for layer, momentum in zip(layers, momenta, strict=True):
        layer.momentum = momentum
    module.eval()
    return len(layers)
