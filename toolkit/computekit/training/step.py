"""One optimizer step. Importing this imports torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..devices import is_out_of_memory
from ..errors import ComputekitError
from ..evaluation import check_logits, forward
from .clock import Clock
from .memory import OutOfMemory, held_bytes
from .parallel import Ranks
from .recipe import Recipe

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]
"""``loss(logits, inputs, targets)`` -> scalar mean over the samples; the inputs are there for a teacher to look at."""


def cross_entropy(logits: Tensor, _inputs: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy in nats of logits (..., classes) against targets (...)."""
    return F.cross_entropy(logits.float().flatten(0, -2), targets.flatten())


class Step:
    """Forward, loss and backward of each micro-batch, then clip and update.

    The gradient is that of the mean loss over all samples of the step, however they are split: into ``accumulate``
    micro-batches (fewer, where one would have less than ``least`` samples) and among the ranks. ``wrapped`` owns the
    parameters; ``called`` is it or its compiled form.
    """

    def __init__(
        self,
        wrapped: nn.Module,
        called: Callable[[Tensor], Any],
        optimizer: torch.optim.Optimizer,
        recipe: Recipe,
        loss: Loss,
        device: torch.device,
        name: str,
        *,
        accumulate: int,
        least: int,
        ranks: Ranks,
        clock: Clock,
        sample_bytes: int,
    ) -> None:
        self.wrapped, self.called, self.optimizer, self.loss = wrapped, called, optimizer, loss
        self.device, self.name = device, name
        self.clip, self.accumulate, self.least, self.ranks, self.clock = recipe.clip, accumulate, least, ranks, clock
        self.sample_bytes = sample_bytes  # of activations, for the message when memory is used up
        self.autocast_to = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(recipe.precision)
        self.scaler = torch.amp.GradScaler(device.type, enabled=recipe.precision == "fp16")

    def __call__(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Train on all samples of a step; returns the loss summed over this rank's samples (on the device)."""
        total = torch.zeros((), device=self.device)
        count = len(inputs)
        mine = self.ranks.share(count)
        idle = mine.start == mine.stop
        if idle:  # a last batch of fewer samples than ranks: this one takes part with a sample that does not count
            mine = slice(0, 1)
        pieces = max(1, min(self.accumulate, (mine.stop - mine.start) // self.least))
        parts = list(zip(inputs[mine].tensor_split(pieces), targets[mine].tensor_split(pieces), strict=True))
        self.optimizer.zero_grad(set_to_none=True)
        try:
            for number, (some, answers) in enumerate(parts, 1):
                with self.ranks.synchronizing(self.wrapped, number == len(parts)):
                    # ranks' gradients are averaged, so each rank's share counts world times
                    samples = 0 if idle else len(some)
                    total += self._backward(some, answers, samples * self.ranks.world / count) * samples
            with self.clock.part("optimizer"):
                if self.clip:
                    self.scaler.unscale_(self.optimizer)
                    nn.utils.clip_grad_norm_(self.wrapped.parameters(), self.clip)
                self.scaler.step(self.optimizer)
                self.scaler.update()
        except Exception as error:
            if is_out_of_memory(error):
                raise OutOfMemory(
                    len(parts[0][0]),
                    held_bytes(self.wrapped, self.optimizer, len(parts[0][0]) * self.sample_bytes),
                    self.device,
                ) from error
            if type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
                line = next(line for line in str(error).splitlines() if line.strip())
                raise ComputekitError(f"torch.compile failed on {self.name}: {line}; leave out --compile") from error
            if isinstance(error, RuntimeError):  # of the model's own code, or of its backward pass
                line = next(iter(str(error).splitlines()), type(error).__name__)
                raise ComputekitError(f"{self.name} failed in a training step: {line}") from error
            raise
        return total

    def _backward(self, inputs: Tensor, targets: Tensor, weight: float) -> Tensor:
        with self.clock.part("data"):
            inputs = inputs.to(self.device, non_blocking=True)
            targets = targets.to(self.device, non_blocking=True)
        with (
            self.clock.part("forward"),
            torch.autocast(self.device.type, self.autocast_to, enabled=self.autocast_to is not None),
        ):
            logits = forward(self.called, inputs, self.name)
            if logits.shape[:-1] != targets.shape:
                check_logits(logits, targets, self.name)
            value = self.loss(logits, inputs, targets)
        with self.clock.part("backward"):
            torch.autograd.backward(self.scaler.scale(value * weight))
        waited = self.ranks.waited_s()
        if waited is not None:
            self.clock.add("communication", waited)
            self.clock.add("backward", -waited)
        return value.detach()
