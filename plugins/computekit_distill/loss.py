"""The loss of logit distillation. Importing this imports torch."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from computekit import evaluation

from .losses import kl


class LogitDistillation:
    """``alpha * compare(student, teacher, T) + (1 - alpha) * cross-entropy``, a `computekit.training.Loss`.

    ``compare`` is that of a `DistillationLoss`. For text every position is a sample of its own.
    """

    def __init__(
        self,
        teacher: nn.Module,
        temperature: float,
        alpha: float,
        name: str = "the teacher",
        compare: Callable[[Tensor, Tensor, float], Tensor] = kl,
    ) -> None:
        self.teacher = teacher.eval()
        self.temperature, self.alpha, self.name, self.compare = temperature, alpha, name, compare

    def __call__(self, logits: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        """Scalar loss of student ``logits`` (..., C), for ``inputs`` that the teacher sees too."""
        with torch.no_grad():
            taught = evaluation.forward(self.teacher, inputs, self.name).float().flatten(0, -2)
        student = logits.float().flatten(0, -2)
        followed = self.compare(student, taught, self.temperature)
        return self.alpha * followed + (1 - self.alpha) * F.cross_entropy(student, targets.flatten())
