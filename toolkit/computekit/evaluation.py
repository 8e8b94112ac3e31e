"""How good a model is on a split: accuracy or perplexity, with an interval and the outcome of every sample."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .devices import is_out_of_memory
from .errors import ComputekitError
from .statistics import CONFIDENCE, Estimate, mean_interval, paired_difference, wilson

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from .datasets import Split

_LOGITS = 1 << 26  # scores of one batch of text: 256 MB in float32
_ONE_VALUE = "Expected more than 1 value per channel"  # says a batch norm in training


class NotFinite(ComputekitError):
    """A model gives NaN or infinite outputs."""


@dataclass(frozen=True)
class Evaluation:
    """A metric on one split.

    ``metric`` is "accuracy" (fraction) or "perplexity" (per token). ``loss`` is the mean cross-entropy in nats.
    ``outcomes`` (N,) holds, per sample, whether it was right (bool) or its mean negative log-likelihood per token in
    nats (float64), so that two models can be compared sample by sample.
    """

    metric: str
    value: float
    interval: tuple[float, float] | None
    loss: float
    outcomes: Tensor
    method: str

    @property
    def better(self) -> float:
        """Larger is better: accuracy as it is, perplexity as minus the loss."""
        return self.value if self.metric == "accuracy" else -self.loss

    def quantity(self) -> dict[str, Any]:
        """Keyword arguments for ``run.put(evaluation.metric, **evaluation.quantity())``."""
        return {
            "value": self.value,
            "interval": self.interval,
            "confidence": CONFIDENCE if self.interval else None,
            "method": self.method,
        }


def evaluate(
    module: nn.Module,
    split: Split,
    task: str,
    device: torch.device,
    batch_size: int = 256,
    *,
    name: str = "the model",
) -> Evaluation:
    """Run ``module``, which is on ``device``, over ``split`` in eval mode.

    ``task`` is "classification": logits (N, classes), or "language-modeling": logits (N, T, vocabulary). Inputs are
    cast to the module's own floating-point type. ``name`` is what errors call the model. Targets may be `UNSCORED`, as
    many in every window; a batch of text is smaller than ``batch_size`` where its logits would fill the memory.

    Raises:
        ComputekitError: the model cannot take the data, its output has the wrong shape, or it holds NaN.
    """
    import torch
    import torch.nn.functional as F

    from .text import UNSCORED

    if task == "language-modeling":
        batch_size = max(1, min(batch_size, _LOGITS // (split.targets.shape[1] * (int(split.targets.max()) + 1))))
    if task == "inputs":
        raise ComputekitError("the data has inputs and no targets, so there is no accuracy; quantize --metric cosine")
    dtype = floating_dtype(module)
    losses, outcomes = [], []
    training = module.training
    module.eval()
    try:
        with torch.no_grad():  # not inference_mode, in which a sharded model cannot gather its weights
            for start in range(0, len(split), batch_size):
                inputs = split.inputs[start : start + batch_size].to(device)
                targets = split.targets[start : start + batch_size].to(device)
                logits = forward(module, inputs.to(dtype) if inputs.is_floating_point() else inputs, name)
                check_logits(logits, targets, name)
                loss = F.cross_entropy(logits.float().flatten(0, -2), targets.flatten(), reduction="none")
                losses.append(loss.view(targets.shape).double().cpu())
                outcomes.append((logits.argmax(-1) == targets).cpu())
    finally:
        module.train(training)
    nll = torch.cat(losses)
    if not bool(torch.isfinite(nll).all()):
        raise NotFinite(f"{name} gives NaN or infinite outputs; its weights or the inputs are broken")
    if task == "classification":
        right = torch.cat(outcomes)
        hits = int(right.sum())
        share = wilson(hits, len(right))
        method = f"{hits} of {len(right)} right; Wilson interval"
        return Evaluation("accuracy", share.value, share.interval, float(nll.mean()), right, method)
    scored = int((split.targets[0] != UNSCORED).sum())
    windows = nll.sum(1) / scored  # unscored tokens have the loss 0
    mean = mean_interval(windows.tolist())
    interval = (math.exp(mean.interval[0]), math.exp(min(mean.interval[1], 700.0))) if mean.interval else None
    tokens = nll.shape[1]
    cut = f"{len(windows)} windows of {tokens} tokens" + (f", {scored} scored in each" if scored < tokens else "")
    method = f"exp of the mean cross-entropy over {cut}; t interval of that mean over windows"
    return Evaluation("perplexity", math.exp(min(mean.value, 700.0)), interval, mean.value, windows, method)


def difference(baseline: Evaluation, other: Evaluation) -> tuple[str, Estimate]:
    """How ``other`` differs from ``baseline`` on the same samples: a quantity's key and its paired estimate.

    "accuracy_difference" is other minus baseline as a fraction; "perplexity_ratio" is other over baseline, with the t
    interval of the mean difference over windows.
    """
    if baseline.metric == "accuracy":
        return "accuracy_difference", paired_difference(baseline.outcomes.tolist(), other.outcomes.tolist()).difference
    mean = mean_interval((other.outcomes - baseline.outcomes).tolist())
    interval = (math.exp(mean.interval[0]), math.exp(mean.interval[1])) if mean.interval else None
    method = "exp of the mean difference in cross-entropy over windows, paired; t interval of that mean"
    return "perplexity_ratio", Estimate(math.exp(mean.value), interval, mean.confidence, method)


def floating_dtype(module: nn.Module) -> torch.dtype:
    """The type of the module's first floating-point parameter or buffer, else float32. 8-bit ones are storage."""
    import torch

    for tensor in (*module.parameters(), *module.buffers()):
        if tensor.is_floating_point() and tensor.dtype.itemsize > 1:
            return tensor.dtype
    return torch.float32


def forward(module: Callable[[Tensor], Any], inputs: Tensor, name: str) -> Tensor:
    """``module(inputs)`` with torch's shape complaints turned into one line about ``name`` and the data.

    Models that return more than logits (a tuple, or an object or a dict with ``logits``) are accepted.
    """
    try:
        output = module(inputs)
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        if is_out_of_memory(error) or type(error).__module__.startswith("torch._"):
            raise
        shape = "x".join(map(str, inputs.shape[1:]))
        first_line = (str(error).splitlines() or [type(error).__name__])[0]
        if _ONE_VALUE in first_line:
            raise ComputekitError(
                f"{name} has batch norms, which need two values for each channel; give a larger --batch-size"
            ) from error
        raise ComputekitError(f"{name} cannot take samples of shape {shape}: {first_line}") from error
    if isinstance(output, dict):
        output = output.get("logits", output)
    logits: Tensor = output[0] if isinstance(output, tuple) else getattr(output, "logits", output)
    return logits


def check_logits(logits: Any, targets: Tensor, name: str) -> None:
    """Raise ComputekitError unless ``logits`` are one score per class for each of ``targets``."""
    import torch

    if not isinstance(logits, torch.Tensor) or logits.shape[:-1] != targets.shape:
        got = tuple(logits.shape) if isinstance(logits, torch.Tensor) else type(logits).__name__
        wanted = ", ".join([*map(str, targets.shape), "classes"])
        raise ComputekitError(f"{name} returned {got} where logits of shape ({wanted}) belong")
    if logits.shape[-1] <= int(targets.max()):
        raise ComputekitError(
            f"{name} tells {logits.shape[-1]} classes apart, but the data has class {int(targets.max())}; "
            f"build it for this data (classes or vocab in the architecture's arguments)"
        )
