"""LAMB, which torch.optim does not have. Importing this imports torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor


class Lamb(torch.optim.Optimizer):
    """Layer-wise adaptive moments for large batches (You et al. 2020, arXiv:1904.00962, algorithm 2).

    Adam's bias-corrected step plus decoupled weight decay, scaled for each tensor by ``||weight|| / ||step||`` (1
    where either norm is 0). Tensors without weight decay, biases and norms by convention, take the plain Adam step.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update every parameter that has a gradient; returns ``closure()`` if one is given."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad, group)
        return loss

    def _update(self, weight: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state = self.state[weight]
        if not state:
            state["step"] = torch.zeros(())
            state["exp_avg"] = torch.zeros_like(weight)
            state["exp_avg_sq"] = torch.zeros_like(weight)
        state["step"] += 1
        count = float(state["step"])
        beta1, beta2 = group["betas"]
        state["exp_avg"].lerp_(gradient, 1 - beta1)
        state["exp_avg_sq"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        spread = (state["exp_avg_sq"] / (1 - beta2**count)).sqrt_().add_(group["eps"])
        change = state["exp_avg"] / (1 - beta1**count) / spread
        if group["weight_decay"]:
            change = change + group["weight_decay"] * weight
            weight_norm, change_norm = _norm(weight), _norm(change)
            trust = torch.where((weight_norm > 0) & (change_norm > 0), weight_norm / change_norm, 1.0)
            # a sharded tensor and a plain one do not mix, but a number goes with both
            change = change * (float(trust) if isinstance(change, DTensor) else trust)
        weight.sub_(change * group["lr"])


def _norm(tensor: Tensor) -> Tensor:
    """The norm of the whole tensor, of a sharded one too."""
    norm = torch.linalg.vector_norm(tensor)
    return norm.full_tensor() if isinstance(norm, DTensor) else norm
