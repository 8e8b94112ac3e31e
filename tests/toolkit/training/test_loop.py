"""`fit`: it learns, it repeats itself, it keeps the best epoch, it counts its FLOPs, and it fails in one line."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from computekit import training
from computekit.datasets import Data, from_arrays, from_text
from computekit.errors import ComputekitError

CPU = torch.device("cpu")
FAST = training.Recipe(epochs=6, batch_size=16, lr=0.05)


def _data(count: int = 200) -> Data:
    """Two clouds of points in four dimensions."""
    generator = torch.Generator().manual_seed(0)
    targets = torch.arange(count) % 2
    inputs = torch.randn(count, 4, generator=generator) + 3 * targets[:, None]
    return from_arrays("clouds", inputs.numpy(), targets.numpy(), "")


def _module(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def _fit(recipe: training.Recipe = FAST, seed: int = 0, **more: object) -> tuple[nn.Module, training.FitResult]:
    module = _module()
    return module, training.fit(module, _data(), recipe, device=CPU, seed=seed, **more)  # type: ignore[arg-type]


def _same(a: nn.Module, b: nn.Module) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters(), strict=True))


@pytest.mark.parametrize("optimizer", ["adamw", "sgd", "lamb"])
@pytest.mark.parametrize("precision", training.PRECISIONS)
def test_it_learns(optimizer: str, precision: str) -> None:
    module, result = _fit(dataclasses.replace(FAST, optimizer=optimizer, precision=precision))
    assert result.validation.value > 0.95
    assert result.history[-1]["loss"] < result.history[0]["loss"]
    assert not module.training and all(p.dtype == torch.float32 for p in module.parameters())


def test_the_same_seed_gives_the_same_bits_and_another_seed_does_not() -> None:
    a, first = _fit()
    torch.manual_seed(99)  # the shuffling has a generator of its own
    b, second = _fit()
    c, _ = _fit(seed=1)
    assert _same(a, b) and first.history == second.history
    assert not _same(a, c)


def test_the_weights_are_those_of_the_best_epoch() -> None:
    from computekit.evaluation import evaluate

    module, result = _fit(dataclasses.replace(FAST, epochs=5, lr=1.0))
    best = result.history[result.best_epoch - 1]
    again = evaluate(module, _data().validation, "classification", CPU)
    assert again.loss == best["validation_loss"]
    assert best["validation_accuracy"] == max(epoch["validation_accuracy"] for epoch in result.history)


def test_patience_stops_early() -> None:
    _, result = _fit(
        dataclasses.replace(FAST, epochs=50, patience=2),
        loss=lambda logits, inputs, targets: -training.cross_entropy(logits, inputs, targets).clamp(max=9),
    )
    assert (result.best_epoch, len(result.history)) == (1, 3)


def test_flops_of_training_are_counted_exactly() -> None:
    _, result = _fit(dataclasses.replace(FAST, epochs=2))
    train = len(_data().train)
    # forward 2*m*n per sample and layer; backward once for the weights, and for the inputs of all but the first layer
    per_sample = 2 * (4 * 8 + 8 * 2) + 2 * (4 * 8 + 8 * 2) + 2 * 8 * 2
    assert result.samples == 2 * train
    assert result.train_flops == 2 * train * per_sample


def test_a_last_batch_of_one_sample_is_left_out() -> None:
    count = len(_data().train)
    module = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    recipe = training.Recipe(epochs=1, batch_size=count - 1)
    assert training.fit(module, _data(), recipe, device=CPU, seed=0).samples == count - 1


def test_batch_norms_get_two_samples_in_each_micro_batch_and_say_it_where_they_cannot() -> None:
    module = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    rest = len(_data().train) % 16
    assert rest >= 2
    done = training.fit(
        module, _data(), training.Recipe(epochs=1, batch_size=16), device=CPU, seed=0,
        execution=training.Execution(accumulate=8),
    )  # fmt: skip
    assert done.samples == len(_data().train)
    with pytest.raises(ComputekitError, match=r"has batch norms, .* give a larger --batch-size"):
        training.fit(module, _data(), training.Recipe(epochs=1, batch_size=1), device=CPU, seed=0)


def test_a_loss_of_one_s_own_sees_the_inputs() -> None:
    seen: list[torch.Size] = []

    def loss(logits: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        seen.append(inputs.shape)
        return training.cross_entropy(logits, inputs, targets)

    _fit(dataclasses.replace(FAST, epochs=1), loss=loss)
    assert set(seen) == {(16, 4), (len(_data().train) % 16, 4)}


def test_text_and_progress() -> None:
    class Bar:
        def __init__(self, total: int, text: str) -> None:
            self.left, self.text = total, text

        def update(self) -> None:
            self.left -= 1

        def set_postfix(self, **shown: str) -> None:
            assert "perplexity" in shown

        def close(self) -> None:
            self.text = "closed"

    bars: list[Bar] = []
    data = from_text("t", b"abcd" * 200, "", window=8)
    module = nn.Sequential(nn.Embedding(256, 16), nn.Linear(16, 256))
    recipe = training.Recipe(epochs=3, lr=0.05, batch_size=8)
    result = training.fit(
        module, data, recipe, device=CPU, seed=0, progress=lambda total, text: bars.append(Bar(total, text)) or bars[0]
    )
    assert result.validation.metric == "perplexity" and result.validation.value < 1.2
    assert (bars[0].left, bars[0].text) == (0, "closed")


# -- what goes wrong -------------------------------------------------------------------------------------------------


def test_a_loss_that_is_no_number_says_what_to_try() -> None:
    with pytest.raises(ComputekitError, match=r"NaN or infinite in epoch 1, by step 9; try a smaller --lr than 0.05"):
        _fit(loss=lambda logits, _inputs, _targets: logits.sum() * math.nan)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (nn.Linear(5, 2), "cannot take samples of shape 4"),
        (nn.Linear(4, 1), "tells 1 classes apart"),
        (nn.Flatten(), "has no parameters"),
        (nn.Sequential(nn.Linear(4, 2), nn.Flatten(0)), "where logits of shape"),
    ],
)
def test_a_module_that_does_not_fit_the_data_fails_before_training(module: nn.Module, message: str) -> None:
    with pytest.raises(ComputekitError, match=message):
        training.fit(module, _data(), FAST, device=CPU, seed=0)


class _Changing(nn.Module):
    """Behaves in the first forward passes, as models do that were only tried once."""

    def __init__(self, then: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.then, self.calls = nn.Linear(4, 2), then, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        logits: Tensor = self.layer(x)
        return self.then(logits) if self.calls > 5 else logits


@pytest.mark.parametrize(
    ("then", "message"),
    [
        (lambda y: y[:-1], r"model returned \(15, 2\) where logits of shape \(16, classes\) belong"),
        (lambda y: y.detach(), "failed in a training step: element 0 of tensors does not require grad"),
    ],
)
def test_a_module_that_changes_its_mind_is_one_line(then: Callable[[Tensor], Tensor], message: str) -> None:
    with pytest.raises(ComputekitError, match=message):
        training.fit(_Changing(then), _data(), FAST, device=CPU, seed=0)


def test_ctrl_c_comes_through() -> None:
    def loss(*_: Tensor) -> Tensor:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _fit(loss=loss)
