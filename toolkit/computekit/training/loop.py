"""The training loop. Importing this imports torch."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from .. import energy, flops
from ..datasets import Data, Split
from ..errors import ComputekitError
from ..evaluation import Evaluation, NotFinite, check_logits, evaluate, forward
from . import checkpoint, memory
from .batches import Batches
from .clock import Clock
from .execution import Execution
from .optimizers import cosine, optimizer_for
from .parallel import Ranks
from .recipe import Recipe
from .step import Loss, Step, cross_entropy
from .trace import Trace

_CHECK_EVERY = 16
"""Steps between looks at the loss: each look waits for the device."""


class TrainingFailed(ComputekitError):
    """The loss is no number any more, in training or in validation."""

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
    ``train_flops`` is the module's forward and backward passes over ``samples`` training samples, as `computekit.flops`
    counts them; ``hardware_flops`` adds what was computed again to save memory. Neither has validation, a teacher or
    element-wise work in it. ``uncounted`` names the operators that have no formula.

    ``seconds`` has the wall time of each part of the loop in this process, ``exact_seconds`` says whether a device's
    queue may have blurred them, ``total_s`` is all of it. ``samples_per_s`` leaves out the first step (with what is
    compiled and allocated in it), validation and checkpoints; None if there was only one step. ``energy_j`` is what the
    counter of this process's device says of all of it, or None for ``energy_reason``.
    """

    recipe: Recipe
    history: list[dict[str, float]]
    best_epoch: int
    validation: Evaluation
    train_flops: float
    hardware_flops: float
    uncounted: tuple[str, ...]
    samples: int
    seconds: dict[str, float]
    exact_seconds: bool
    total_s: float
    first_step_s: float
    samples_per_s: float | None
    peak_memory_bytes: int | None
    energy_j: float | None
    energy_reason: str
    ranks: int
    trace_table: str = ""


def fit(
    module: nn.Module,
    data: Data,
    recipe: Recipe,
    *,
    device: torch.device,
    seed: int,
    loss: Loss = cross_entropy,
    execution: Execution | None = None,
    ranks: Ranks | None = None,
    progress: Callable[..., Any] | None = None,
    name: str = "the model",
) -> FitResult:
    """Train ``module`` in place on ``data.train`` and leave it on ``device`` with the best epoch's weights.

    The best epoch is chosen on ``data.validation`` (accuracy, then loss; for text the loss); the test split is never
    looked at. With the same seed, threads and device the result is the same to the last bit on the CPU, also when it
    was killed and went on from a checkpoint. ``progress(total, text)`` makes a progress bar. Where several ``ranks``
    train together, only the first one's ``module`` is sure to hold the result.

    Raises:
        ComputekitError: the module does not fit the data or the memory, or the loss became NaN.
    """
    execution, ranks = execution or Execution(), ranks or Ranks()
    recipe = recipe.resolved(data)
    module.to(device)
    check_fits(module, data, device, name)
    training = _Training(module, data, recipe, device, seed, loss, execution, ranks, name)
    try:
        training.start()
        training.run(progress)
    finally:
        training.stop()
    return training.result()


def check_fits(module: nn.Module, data: Data, device: torch.device, name: str) -> None:
    """Raise ComputekitError unless ``module`` takes samples of ``data`` and tells its classes apart."""
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise ComputekitError(f"{name} has no parameters that could be trained")
    if data.task == "inputs":
        raise ComputekitError(f"data {data.name} has inputs and no targets to train on")
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


@dataclass
class _Progress:
    """What a checkpoint must hold besides weights, optimizer and batches."""

    epoch: int = 1
    step: int = 0
    samples: int = 0
    loss: float = 0.0
    loss_samples: int = 0
    history: list[dict[str, float]] = field(default_factory=list)
    best_epoch: int = 0
    best: dict[str, Any] | None = None
    best_weights: dict[str, Tensor] = field(default_factory=dict)

    @property
    def validation(self) -> Evaluation:
        assert self.best is not None
        return Evaluation(**self.best)


class _Training:
    """One call of `fit`."""

    def __init__(
        self,
        module: nn.Module,
        data: Data,
        recipe: Recipe,
        device: torch.device,
        seed: int,
        loss: Loss,
        execution: Execution,
        ranks: Ranks,
        name: str,
    ) -> None:
        assert recipe.epochs and recipe.batch_size and recipe.lr and recipe.weight_decay is not None
        self.module, self.data, self.recipe, self.device, self.name = module, data, recipe, device, name
        self.execution, self.ranks = execution, ranks
        self.epochs, self.lr = recipe.epochs, recipe.lr
        if recipe.batch_size < ranks.world * execution.accumulate:
            raise ComputekitError(
                f"--batch-size {recipe.batch_size} cannot be shared among {ranks.world} ranks in "
                f"{execution.accumulate} parts; it must be at least {ranks.world * execution.accumulate}"
            )
        self.cost = flops.count(module.train(), data.train.inputs[:2].to(device))
        self.again = memory.recompute(module, name) if execution.recompute else []
        self.wrapped = ranks.wrap(module, device)
        self.optimizer = optimizer_for(self.wrapped, recipe.optimizer, self.lr, recipe.weight_decay)
        # batch norms need two samples on each rank; without them every sample counts, however many ranks there are
        norms = any(isinstance(m, _BatchNorm) for m in module.modules())
        self.batches = Batches(
            data.train, recipe.batch_size, recipe.augment == "shift", seed, 2 * ranks.world if norms else 1,
            workers=execution.data_workers, pinned=device.type == "cuda",
        )  # fmt: skip
        factor = cosine(recipe.warmup, self.epochs * len(self.batches))
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, factor)
        self.clock = Clock(device, exact=execution.trace is not None)
        called = torch.compile(self.wrapped) if execution.compile else self.wrapped
        self.take_step = Step(
            self.wrapped, called, self.optimizer, recipe, loss, device, name,
            accumulate=execution.accumulate, least=2 if norms else 1, ranks=ranks, clock=self.clock,
            sample_bytes=self.cost.activation_bytes // 2,
        )  # fmt: skip
        self.fingerprint = {
            "architecture": name,
            "weights": {key: list(tensor.shape) for key, tensor in module.state_dict().items()},
            "data": data.sha256(),
            "seed": seed,
            "accumulate": execution.accumulate,
            **dataclasses.asdict(recipe),
        }
        self.at = _Progress()
        self.first_step: tuple[float, int] | None = None
        self.peak: int | None = None
        self.energy: energy.Span | None = None
        self.trace: Trace | None = None

    # -- the loop ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Go on from the checkpoint if there is one, and start measuring."""
        if self.execution.checkpoint:
            self._load(self.execution.checkpoint)
        memory.reset_peak(self.device)
        self.energy = energy.Span(self.device.type, self.device.index or 0)
        if self.execution.trace and self.ranks.first:
            self.trace = Trace(self.execution.trace)
        self.clock.restart()

    def run(self, progress: Callable[..., Any] | None) -> None:
        """Train to the end, or until patience is lost; the module then holds the best weights."""
        bar = progress(self.epochs * len(self.batches), "training") if progress else None
        try:
            if bar and self.at.step:
                bar.update(self.at.step)
            while self.at.epoch <= self.epochs and not self._lost_patience():
                self._epoch(bar)
        finally:
            if bar:
                bar.close()
        self.peak = memory.peak_bytes(self.device)
        if self.energy:
            self.energy.end()
        if self.ranks.first:
            self.module.load_state_dict(self.at.best_weights)
        self.module.eval()

    def stop(self) -> None:
        """Leave the module as modules are, and no threads behind, whatever happened."""
        self.batches.close()
        if self.trace:
            self.trace.stop()
        if self.execution.recompute:
            memory.keep(self.module)

    def _lost_patience(self) -> bool:
        return bool(self.recipe.patience) and len(self.at.history) - self.at.best_epoch >= self.recipe.patience

    def _epoch(self, bar: Any) -> None:
        """The rest of the current epoch and its validation."""
        at = self.at
        total = torch.zeros((), device=self.device)
        self.wrapped.train()
        rest = iter(self.batches)
        while True:
            with self.clock.part("data"):
                batch = next(rest, None)
            if batch is None:
                break
            total += self.take_step(*batch)
            self.schedule.step()
            at.step += 1
            at.samples += len(batch[0])
            at.loss_samples += len(batch[0])
            self._after_step(bar)
            saving = bool(self.execution.checkpoint_every) and at.step % (self.execution.checkpoint_every or 1) == 0
            if saving or at.step % _CHECK_EVERY == 0 or self.batches.position == len(self.batches):
                at.loss += float(total)
                total.zero_()
                if not math.isfinite(at.loss):
                    raise TrainingFailed(at.epoch, at.step, self.lr)
            if saving:
                self._save()
        self._validate(bar)
        at.epoch += 1
        at.loss, at.loss_samples = 0.0, 0
        if not self.execution.checkpoint_every:
            self._save()

    def _after_step(self, bar: Any) -> None:
        if bar:
            bar.update()
        if self.trace:
            self.trace.step()
        if self.first_step is None:
            self.first_step = self.clock.training(), self.at.samples

    def _validate(self, bar: Any) -> None:
        at = self.at
        mean = self._loss_of_all() / at.loss_samples
        with self.clock.part("validation"):
            # a sharded model only runs where all ranks run it; the others need no wrapper
            module = self.wrapped if self.ranks.kind == "fsdp" else self.module
            try:
                found = evaluate(
                    module, self.data.validation, self.data.task, self.device, self.batches.batch_size, name=self.name
                )
            except NotFinite as error:
                raise TrainingFailed(at.epoch, at.step, self.lr) from error
        at.history.append(
            {"epoch": at.epoch, "loss": mean, "validation_loss": found.loss, f"validation_{found.metric}": found.value}
        )
        if bar:
            bar.set_postfix(loss=f"{mean:.3f}", **{found.metric: f"{found.value:.4g}"})
        if at.best is None or (found.better, -found.loss) > (at.validation.better, -at.validation.loss):
            at.best_epoch, at.best = at.epoch, dict(vars(found))
            at.best_weights = self.ranks.weights(self.wrapped, self.module)

    def _loss_of_all(self) -> float:
        """The summed loss of the epoch over all ranks; from here on the first rank keeps it."""
        total = self.ranks.sum(self.at.loss, self.device)
        self.at.loss = total if self.ranks.first else 0.0
        return total

    # -- checkpoints ---------------------------------------------------------------------------------------------

    def _save(self) -> None:
        if self.execution.checkpoint is None:
            return
        with self.clock.part("checkpoint"):
            self._loss_of_all()
            state = {
                "weights": self.ranks.weights(self.wrapped, self.module),
                "optimizer": self.ranks.optimizer_state(self.wrapped, self.optimizer),
                "schedule": self.schedule.last_epoch,
                "scaler": self.take_step.scaler.state_dict(),
                "batches": self.batches.state(),
                "progress": dict(vars(self.at)),
            }
            if self.ranks.first:
                checkpoint.save(self.execution.checkpoint, self.fingerprint, state)

    def _load(self, path: Path) -> None:
        if self.ranks.first:
            checkpoint.discard_leftovers(path)
        state = checkpoint.load(path, self.fingerprint)
        if state is None:
            return
        self.ranks.load_weights(self.wrapped, self.module, state["weights"])
        self.ranks.load_optimizer_state(self.wrapped, self.optimizer, state["optimizer"])
        self.schedule.last_epoch = state["schedule"]
        for group, factor in zip(self.optimizer.param_groups, self.schedule.lr_lambdas, strict=True):
            group["lr"] = self.lr * factor(state["schedule"])
        self.take_step.scaler.load_state_dict(state["scaler"])
        self.batches.load_state(state["batches"])
        self.at = _Progress(**state["progress"])
        if not self.ranks.first:
            self.at.loss = 0.0  # the saved one is the sum over all ranks

    # -- the result ----------------------------------------------------------------------------------------------

    def result(self) -> FitResult:
        """What came of it."""
        at, first = self.at, self.first_step
        trained_s = self.clock.training()
        again = sum(self.cost.by_module[block].forward for block in self.again)
        later = at.samples - first[1] if first else 0
        return FitResult(
            recipe=self.recipe,
            history=at.history,
            best_epoch=at.best_epoch,
            validation=at.validation,
            train_flops=self.cost.total / 2 * at.samples,
            hardware_flops=(self.cost.total + again) / 2 * at.samples,
            uncounted=tuple(op.name for op in self.cost.unknown),
            samples=at.samples,
            seconds=self.clock.seconds,
            exact_seconds=self.clock.exact,
            total_s=self.clock.total(),
            first_step_s=first[0] if first else 0.0,
            samples_per_s=later / (trained_s - first[0]) if first and later else None,
            peak_memory_bytes=self.peak,
            energy_j=self.energy.joules if self.energy else None,
            energy_reason=self.energy.reason if self.energy else "training did not start",
            ranks=self.ranks.world,
            trace_table=self.trace.table if self.trace else "",
        )
