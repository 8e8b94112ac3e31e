"""Gradients of the training loss, for criteria that look at them. Importing this imports torch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from computekit import evaluation
from computekit.datasets import Data

SAMPLES = 1024
"""Training samples that the gradient is taken over; the first of the split, so that it is the same each time."""

BATCH = 64


def accumulate(module: nn.Module, data: Data, device: torch.device) -> None:
    """Leave the gradient of the mean cross-entropy in ``.grad`` of the parameters of ``module``, on the CPU.

    The module runs in eval mode, as its weights are what is judged.
    """
    module.to(device).eval().requires_grad_(True)
    module.zero_grad()
    count = min(SAMPLES, len(data.train))
    for start in range(0, count, BATCH):
        inputs = data.train.inputs[start : min(start + BATCH, count)].to(device)
        targets = data.train.targets[start : min(start + BATCH, count)].to(device)
        logits = evaluation.forward(module, inputs, "the model")
        loss = F.cross_entropy(logits.float().flatten(0, -2), targets.flatten())
        torch.autograd.backward(loss * len(inputs) / count)
    module.cpu()
