"""LAMB against its definition, which weights are decayed, and the schedule."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from computekit.training.lamb import Lamb
from computekit.training.optimizers import cosine, optimizer_for


def test_lamb_is_algorithm_2() -> None:
    torch.manual_seed(0)
    start, gradients, lr, decay = torch.randn(3, 4), torch.randn(5, 3, 4), 0.1, 0.01
    weight = nn.Parameter(start.clone())
    optimizer = Lamb([weight], lr=lr, weight_decay=decay, eps=1e-6)
    x, m, v = start.double(), torch.zeros(3, 4).double(), torch.zeros(3, 4).double()
    for t, gradient in enumerate(gradients.double(), 1):
        weight.grad = gradient.float()
        optimizer.step()
        m, v = 0.9 * m + 0.1 * gradient, 0.999 * v + 0.001 * gradient**2
        r = m / (1 - 0.9**t) / ((v / (1 - 0.999**t)).sqrt() + 1e-6) + decay * x
        x = x - lr * x.norm() / r.norm() * r
    assert torch.allclose(weight.double(), x, atol=1e-5)


def test_lamb_without_decay_is_adam_and_zero_weights_move() -> None:
    a, b = nn.Parameter(torch.zeros(4)), nn.Parameter(torch.zeros(4))
    pairs = [(a, Lamb([a], lr=0.1, eps=1e-8)), (b, torch.optim.Adam([b], lr=0.1))]
    for _ in range(3):
        for parameter, optimizer in pairs:
            parameter.grad = torch.arange(4.0)
            optimizer.step()
    assert torch.allclose(a, b, atol=1e-6)
    zero = nn.Parameter(torch.zeros(2, 2))
    zero.grad = torch.ones(2, 2)
    Lamb([zero], lr=0.1, weight_decay=0.1).step()
    assert (zero < 0).all()


@pytest.mark.parametrize("name", ["adamw", "sgd", "lamb"])
def test_biases_and_norms_are_not_decayed(name: str) -> None:
    module = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3))
    decay = {id(p): g["weight_decay"] for g in optimizer_for(module, name, 0.1, 0.5).param_groups for p in g["params"]}
    assert [decay[id(p)] for p in module.parameters()] == [0.5, 0.0, 0.0, 0.0]


def test_the_schedule_rises_and_falls_to_zero() -> None:
    factor = cosine(0.1, 100)
    assert [factor(0), factor(4), factor(9), factor(10)] == pytest.approx([0.1, 0.5, 1.0, 1.0])
    assert factor(55) == pytest.approx(0.5) and factor(99) < 0.001
    assert all(factor(step) >= factor(step + 1) for step in range(10, 99))
    assert math.isfinite(cosine(1.0, 1)(0))
