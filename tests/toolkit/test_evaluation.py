"""Evaluation: the metric, its interval, the outcome of every sample, and models that cannot be evaluated."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from torch import nn

from computekit.datasets import Split
from computekit.errors import ComputekitError
from computekit.evaluation import difference, evaluate

CPU = torch.device("cpu")


class Fixed(nn.Module):
    """Returns the logits that are its input, scaled by a parameter."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones((), dtype=dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale


class Bigram(nn.Module):
    """Next-token logits from a table."""

    def __init__(self, table: torch.Tensor) -> None:
        super().__init__()
        self.table = nn.Parameter(table)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.table[tokens]


def _classification(right: int, count: int) -> Split:
    targets = torch.arange(count) % 3
    shown = torch.where(torch.arange(count) < right, targets, (targets + 1) % 3)
    return Split(nn.functional.one_hot(shown, 3).float() * 4, targets)


@pytest.mark.parametrize("batch_size", [1, 7, 256])
def test_accuracy_counts_right_samples(batch_size: int) -> None:
    result = evaluate(Fixed(), _classification(45, 60), "classification", CPU, batch_size)
    assert (result.metric, result.value) == ("accuracy", 0.75)
    assert result.outcomes.tolist() == [True] * 45 + [False] * 15
    assert result.interval is not None and result.interval[0] < 0.75 < result.interval[1]
    assert "45 of 60" in result.method


@pytest.mark.parametrize("batch_size", [1, 3, 256])
def test_perplexity_is_exp_of_the_mean_cross_entropy(batch_size: int) -> None:
    torch.manual_seed(0)
    table, tokens = torch.randn(5, 5), torch.randint(0, 5, (7, 9))
    split = Split(tokens[:, :-1], tokens[:, 1:])
    result = evaluate(Bigram(table), split, "language-modeling", CPU, batch_size)
    probabilities = table.double().softmax(-1)
    nll = [-math.log(probabilities[a, b]) for row in tokens for a, b in itertools.pairwise(row)]
    assert result.value == pytest.approx(math.exp(sum(nll) / len(nll)), rel=1e-6)
    assert result.outcomes.shape == (7,)
    assert result.outcomes.mean().item() == pytest.approx(result.loss)


def test_a_uniform_model_has_the_vocabulary_as_perplexity() -> None:
    split = Split(torch.zeros(4, 6, dtype=torch.int64), torch.ones(4, 6, dtype=torch.int64))
    assert evaluate(Bigram(torch.zeros(17, 17)), split, "language-modeling", CPU).value == pytest.approx(17)


def test_inputs_take_the_model_s_own_type_and_its_mode_comes_back() -> None:
    module = Fixed(torch.bfloat16).train()
    assert evaluate(module, _classification(60, 60), "classification", CPU).value == 1.0
    assert module.training


def test_differences_are_paired() -> None:
    a = evaluate(Fixed(), _classification(40, 60), "classification", CPU)
    b = evaluate(Fixed(), _classification(46, 60), "classification", CPU)
    key, estimate = difference(a, b)
    assert key == "accuracy_difference" and estimate.value == pytest.approx(0.1)
    tokens = torch.randint(0, 5, (7, 9))
    split = Split(tokens[:, :-1], tokens[:, 1:])
    table = torch.randn(5, 5)
    a, b = (evaluate(Bigram(t), split, "language-modeling", CPU) for t in (table, table * 0))
    key, estimate = difference(a, b)
    assert key == "perplexity_ratio" and estimate.value == pytest.approx(b.value / a.value)
    assert difference(a, a)[1].value == 1.0


def _broken(output: Any) -> nn.Module:
    class Broken(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return output(x)

    return Broken()


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (lambda x: x * math.nan, "gives NaN or infinite outputs"),
        (lambda x: x[:1], r"returned \(1, 3\) where logits of shape \(60, classes\) belong"),
        (lambda x: x[..., :2], "tells 2 classes apart, but the data has class 2"),
        (lambda x: {"a": x}, "returned dict where logits"),
        (lambda x: x @ torch.ones(9, 9), "cannot take samples of shape 3: mat1 and mat2"),
    ],
)
def test_a_model_that_cannot_be_evaluated_is_one_line(output: Any, message: str) -> None:
    with pytest.raises(ComputekitError, match=message) as caught:
        evaluate(_broken(output), _classification(60, 60), "classification", CPU, name="m.pt")
    assert str(caught.value).startswith("m.pt ") and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "wrap", [lambda x: (x, None), lambda x: type("Output", (), {"logits": x})(), lambda x: {"logits": x}]
)
def test_tuples_objects_and_dicts_with_logits_are_understood(wrap: Any) -> None:
    assert evaluate(_broken(wrap), _classification(60, 60), "classification", CPU).value == 1.0
