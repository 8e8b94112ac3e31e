"""The loss of logit distillation. Importing this imports torch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from computekit import evaluation


class LogitDistillation:
    """``alpha * T^2 * KL(teacher_T || student_T) + (1 - alpha) * cross-entropy``, a `computekit.training.Loss`.

    Both distributions are softmax(logits / T). The factor T^2 keeps the two terms' gradients in proportion when T
    changes (Hinton, Vinyals and Dean 2015, section 2). For text every position is a sample of its own.
    """

    def __init__(self, teacher: nn.Module, temperature: float, alpha: float, name: str = "the teacher") -> None:
        self.teacher = teacher.eval()
        self.temperature, self.alpha, self.name = temperature, alpha, name

    def __call__(self, logits: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        """Scalar loss of student ``logits`` (..., C), for ``inputs`` that the teacher sees too."""
        with torch.no_grad():
            taught = evaluation.forward(self.teacher, inputs, self.name).float().flatten(0, -2)
        student = logits.float().flatten(0, -2)
        t = self.temperature
        soft = F.kl_div(
            F.log_softmax(student / t, -1), F.log_softmax(taught / t, -1), reduction="batchmean", log_target=True
        )
        return self.alpha * t * t * soft + (1 - self.alpha) * F.cross_entropy(student, targets.flatten())
