"""How a student is compared with its teacher: losses by name, and the hook that adds more."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import computekit

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class DistillationLoss:
    """The term of the loss in which the student follows the teacher.

    ``compare(student, teacher, temperature)`` takes the logits of both as (N, C), float32, N samples (positions of a
    text) and C classes, and returns a scalar. ``computekit distill`` adds the cross-entropy of the true labels.
    """

    name: str
    summary: str
    compare: Callable[[Tensor, Tensor, float], Tensor]


@computekit.hookspec
def computekit_distillation_losses() -> Iterable[DistillationLoss]:  # type: ignore[empty-body]
    """Add distillation losses, usable as ``computekit distill --loss NAME``.

    Example::

        from computekit_distill import DistillationLoss
        from computekit_distill.losses import computekit_distillation_losses

        def absolute(student, teacher, temperature):
            return (student - teacher).abs().mean()

        @implements(computekit_distillation_losses)
        def losses() -> list[DistillationLoss]:
            return [DistillationLoss("absolute", "mean absolute difference of the logits", absolute)]
    """


def find(name: str) -> DistillationLoss:
    """The loss called ``name``; raises UnknownName with the nearest ones."""
    from computekit import host

    known = host.current().named("computekit_distillation_losses", DistillationLoss, "distillation loss")
    if name not in known:
        raise computekit.UnknownName("distillation loss", name, known)
    return known[name]


def kl(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """``T^2 * KL(teacher_T || student_T)`` of softmax(logits / T), the mean over samples.

    The factor T^2 keeps the gradient in proportion to that of the labels when T changes (Hinton, Vinyals and Dean
    2015, section 2).
    """
    import torch.nn.functional as F

    log_student, log_teacher = (F.log_softmax(logits / temperature, -1) for logits in (student, teacher))
    return temperature * temperature * F.kl_div(log_student, log_teacher, reduction="batchmean", log_target=True)


def mse(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """Mean squared difference of the logits, to which KL tends as T grows (Kim et al. 2021, arXiv:2105.08919)."""
    import torch.nn.functional as F

    return F.mse_loss(student, teacher)


BUILTIN = (
    DistillationLoss("kl", "divergence of the softened distributions (Hinton et al. 2015)", kl),
    DistillationLoss("mse", "squared difference of the logits (Kim et al. 2021); has no temperature", mse),
)
