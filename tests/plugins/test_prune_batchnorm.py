"""Taking the statistics of batch norms anew."""

from __future__ import annotations

import torch
from torch import nn

from computekit.datasets import Data, Split
from computekit_prune.batchnorm import recalibrate


def data(count: int) -> Data:
    generator = torch.Generator().manual_seed(0)
    split = Split(3 + 2 * torch.randn(count, 4, generator=generator), torch.zeros(count, dtype=torch.int64))
    return Data("noise", "classification", split, split, split, 2, "made here")


def test_statistics_are_those_of_the_data_and_nothing_else_changes() -> None:
    module = nn.Sequential(nn.BatchNorm1d(4, momentum=0.0), nn.Dropout(0.9), nn.Linear(4, 2)).eval()
    weights = [parameter.clone() for parameter in module.parameters()]
    found = data(1000)  # the last, shorter batch would weigh too much and is left out
    assert recalibrate(module, found, torch.device("cpu")) == 1
    used = found.train.inputs[:960]
    torch.testing.assert_close(module[0].running_mean, used.mean(0), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(module[0].running_var, used.var(0), rtol=0.05, atol=0)
    assert all(torch.equal(a, b) for a, b in zip(module.parameters(), weights, strict=True))
    assert module[0].momentum == 0.0 and not module.training and not module[0].training


def test_less_data_than_a_batch_is_used_whole() -> None:
    module = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 2))
    found = data(10)
    recalibrate(module, found, torch.device("cpu"))
    torch.testing.assert_close(module[0].running_mean, found.train.inputs.mean(0))


def test_module_without_batch_norm_is_left_alone() -> None:
    assert recalibrate(nn.Linear(4, 2), data(10), torch.device("cpu")) == 0
