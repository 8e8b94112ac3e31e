"""The training loop. Importing this imports torch."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from ..datasets import Data, Split
from ..errors import ComputekitError
from ..evaluation import Evaluation, check_logits, evaluate, forward
from .augment import shift
from .recipe import Recipe

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]
"""``loss(logits, inputs, targets)`` -> scalar; the inputs are there for a teacher to look at."""

_CHECK_EVERY = 16
"""Steps between looks at the loss: each look waits for the device."""


class TrainingFailed(ComputekitError):
    """The loss is no number any more."""

    def __init__(self, epoch: int, step: int, lr: float) -> None:
        super().__init__(epoch, step, lr)
        self.epoch, self.step, self.lr = epoch, step, lr

    def __str__(self) -> str:
        return (
            f"the loss became NaN or infinite in epoch {self.epoch}, by step {self.step}; try a smaller --lr than "
            f"{self.lr:g}, or --precision fp32, and check the data for extreme values"
        )


@dataclass(frozen=True)
class FitResult:
    """What training gave: the module holds the weights of ``best_epoch``.

    ``history`` has one dict per epoch: epoch, loss (mean training loss), validation_loss and the validation metric.
    ``train_flops`` counts forward and backward passes of all steps (teacher included), 2 per multiply-add, attention
    as if it were not causal; not validation and not the optimizer's element-wise work.
    """

    recipe: Recipe
    history: list[dict[str, float]]
    best_epoch: int
    validation: Evaluation
    train_flops: float
    samples: int
    seconds: float

    @property
    def samples_per_s(self) -> float:
        """Training samples per second, validation excluded."""
        return self.samples / self.seconds if self.seconds else 0.0


def cross_entropy(logits: Tensor, _inputs: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy in nats of logits (..., classes) against targets (...)."""
    return F.cross_entropy(logits.float().flatten(0, -2), targets.flatten())


def fit(
    module: nn.Module,
    data: Data,
    recipe: Recipe,
    *,
    device: torch.device,
    seed: int,
    loss: Loss = cross_entropy,
    progress: Callable[..., Any] | None = None,
    name: str = "the model",
) -> FitResult:
    """Train ``module`` in place on ``data.train`` and leave it on ``device`` with the best epoch's weights.

    The best epoch is chosen on ``data.validation`` (accuracy, then loss); the test split is never looked at. With the
    same seed, threads and device the result is the same to the last bit on the CPU. ``progress(total, text)`` makes a
    progress bar.

    Raises:
        ComputekitError: the module does not fit the data, or the loss became NaN.
    """
    recipe = recipe.resolved(data)
    assert recipe.epochs and recipe.lr and recipe.batch_size
    module.to(device)
    check_fits(module, data, device, name)
    batches = _Batches(data.train, recipe.batch_size, recipe.augment == "shift", seed, device)
    optimizer = _optimizer(module, recipe)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, _cosine(recipe, recipe.epochs * len(batches)))
    step = _Step(module, optimizer, recipe, loss, device, name)
    history: list[dict[str, float]] = []
    best: tuple[int, Evaluation, dict[str, Tensor]] | None = None
    seconds, samples = 0.0, 0
    bar = progress(recipe.epochs * len(batches), "training") if progress else None
    try:
        for epoch in range(1, recipe.epochs + 1):
            start = time.perf_counter()
            total, count = torch.zeros((), device=device), 0
            module.train()
            for number, (inputs, targets) in enumerate(batches, 1):
                total += step(inputs, targets) * len(inputs)
                count += len(inputs)
                schedule.step()
                if bar:
                    bar.update()
                if (number % _CHECK_EVERY == 0 or number == len(batches)) and not math.isfinite(float(total)):
                    raise TrainingFailed(epoch, (epoch - 1) * len(batches) + number, recipe.lr)
            seconds += time.perf_counter() - start
            samples += count
            validation = evaluate(module, data.validation, data.task, device, name=name)
            history.append(
                {"epoch": epoch, "loss": float(total) / count, "validation_loss": validation.loss,
                 f"validation_{validation.metric}": validation.value}
            )  # fmt: skip
            if bar:
                bar.set_postfix(loss=f"{float(total) / count:.3f}", **{validation.metric: f"{validation.value:.4g}"})
            if best is None or (validation.better, -validation.loss) > (best[1].better, -best[1].loss):
                best = epoch, validation, {k: v.detach().clone() for k, v in module.state_dict().items()}
            elif recipe.patience and epoch - best[0] >= recipe.patience:
                break
    finally:
        if bar:
            bar.close()
    assert best is not None
    module.load_state_dict(best[2])
    module.eval()
    return FitResult(recipe, history, best[0], best[1], step.flops, samples, seconds)


def check_fits(module: nn.Module, data: Data, device: torch.device, name: str) -> None:
    """Raise ComputekitError unless ``module`` takes samples of ``data`` and tells its classes apart."""
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise ComputekitError(f"{name} has no parameters that could be trained")
    few = Split(data.train.inputs[:2], data.train.targets[:2])
    module.eval()
    with torch.no_grad():
        logits = forward(module, few.inputs.to(device), name)
    check_logits(logits, few.targets, name)
    if logits.shape[-1] < data.classes:
        raise ComputekitError(
            f"{name} tells {logits.shape[-1]} classes apart, but data {data.name} has {data.classes}; "
            f"give the number in --arch-args"
        )


class _Batches:
    """Shuffled batches of one split; every epoch goes on with the same generator, which nothing else draws from."""

    def __init__(self, split: Split, batch_size: int, shifted: bool, seed: int, device: torch.device) -> None:
        self.split, self.batch_size, self.shifted, self.device = split, batch_size, shifted, device
        self.generator = torch.Generator().manual_seed(seed)
        full, rest = divmod(len(split), batch_size)
        # a last batch of one sample would break batch normalisation, which needs two
        self.count = max(1, full + (rest > 1))

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        order = torch.randperm(len(self.split), generator=self.generator)
        for start in range(0, self.count * self.batch_size, self.batch_size):
            chosen = order[start : start + self.batch_size]
            inputs, targets = self.split.inputs[chosen], self.split.targets[chosen]
            if self.shifted:
                inputs = shift(inputs, self.generator)
            yield inputs.to(self.device, non_blocking=True), targets.to(self.device, non_blocking=True)


class _Step:
    """One optimizer step: forward, loss, backward, clip, update. Counts the FLOPs of each distinct batch shape once."""

    def __init__(
        self,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        recipe: Recipe,
        loss: Loss,
        device: torch.device,
        name: str,
    ) -> None:
        self.module, self.optimizer, self.recipe, self.loss, self.name = module, optimizer, recipe, loss, name
        self.device = device
        self.autocast_to = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(recipe.precision)
        self.scaler = torch.amp.GradScaler(device.type, enabled=recipe.precision == "fp16")
        self.flops = 0.0
        self._flops_of: dict[tuple[int, ...], float] = {}

    def __call__(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Train on one batch; returns the loss (detached, on the device)."""
        self.optimizer.zero_grad(set_to_none=True)
        shape = tuple(inputs.shape)
        if shape in self._flops_of:
            value = self._backward(inputs, targets)
        else:
            with FlopCounterMode(display=False) as counter:
                value = self._backward(inputs, targets)
            self._flops_of[shape] = float(counter.get_total_flops())
        self.flops += self._flops_of[shape]
        if self.recipe.clip:
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.module.parameters(), self.recipe.clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return value

    def _backward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        with torch.autocast(self.device.type, self.autocast_to, enabled=self.autocast_to is not None):
            value = self.loss(forward(self.module, inputs, self.name), inputs, targets)
        torch.autograd.backward(self.scaler.scale(value))
        return value.detach()


def _optimizer(module: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    """The optimizer, with weight decay on matrices and kernels only."""
    trained = [p for p in module.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.ndim > 1], "weight_decay": recipe.weight_decay},
        {"params": [p for p in trained if p.ndim <= 1], "weight_decay": 0.0},
    ]
    if recipe.optimizer == "sgd":
        # SGD's decay is added to the gradient, so the decoupled value is scaled to the same strength
        return torch.optim.SGD(groups, lr=recipe.lr or 0.0, momentum=0.9, nesterov=True)
    return torch.optim.AdamW(groups, lr=recipe.lr or 0.0)


def _cosine(recipe: Recipe, steps: int) -> Callable[[int], float]:
    """Factor of the learning rate at each step: linear warm-up, then a cosine to 0."""
    warm = max(1, round(recipe.warmup * steps))

    def factor(step: int) -> float:
        if step < warm:
            return (step + 1) / warm
        return 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm)))

    return factor
