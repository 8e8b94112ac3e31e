"""Programs that lose too much are made again with some layers in floats: the most harmful ones, as few as it takes.

Each attempt is a whole export, so there are only a few. Layers are ordered by the harm that each does alone, rounded in
torch as the program rounds it; as if harms added up, they tell how many are left out first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import computekit

from . import sensitivity

if TYPE_CHECKING:
    import torch
    from torch import nn

    from .candidates import Candidate
    from .clock import Deadline
    from .metric import Metric

ATTEMPTS = 6
"""Programs that are made at most."""

SAMPLES = {"classification": 256, "language-modeling": 8, "inputs": 32}
"""Samples of the validation split that layers are ordered on, at most."""

T = TypeVar("T")


@dataclass(frozen=True)
class Layer:
    """The path of a layer in the module, and the harm that quantizing it alone does."""

    path: str
    harm: float


def ranked(
    run: computekit.StepRun, candidate: Candidate, metric: Metric, original: nn.Module, deadline: Deadline
) -> list[Layer]:
    """The linear layers and convolutions of ``original``, the most harmful first, by ``metric``.

    Half of the time that is left is spent at most; layers that there was no time for come last.
    """
    from torch import nn
    from torch.nn.modules.conv import _ConvNd

    layers = {path: each for path, each in original.named_modules() if isinstance(each, nn.Linear | _ConvNd)}
    samples, until = SAMPLES[metric.data.task], deadline.left / 2
    before = metric.score(original, "validation", samples)
    found = []
    with run.progress(len(layers), "ordering layers", "layer") as bar:
        for path, layer in layers.items():
            harm = 0.0
            if deadline.left > until:
                with _rounded(layer, candidate):
                    name = f"the model with {path} quantized"
                    harm = sensitivity.judge(metric, before, original, samples, name).harm
            found.append(Layer(path, max(harm, 0.0)))
            bar.update()
    return sorted(found, key=lambda each: -each.harm)


@contextmanager
def _rounded(layer: nn.Module, candidate: Candidate) -> Iterator[None]:
    """While it lasts, the layer has the weight of the candidate, and inputs that are rounded as its program does."""
    weight: torch.Tensor = layer.weight.data  # type: ignore[assignment]
    original = weight.clone()

    def hook(_layer: nn.Module, args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        static = candidate.activations == "static"  # one scale for all values; else one per row
        low = args[0].amin() if static else args[0].amin(-1, keepdim=True)
        high = args[0].amax() if static else args[0].amax(-1, keepdim=True)
        step = ((high - low) / 255).clamp_min(1e-30)
        return (((args[0] - low) / step).round() * step + low, *args[1:])

    handle = None if candidate.activations == "float" else layer.register_forward_pre_hook(hook)
    try:
        weight.copy_(candidate.request.treatment.round(original.cpu(), "weight").dequantize())
        yield
    finally:
        weight.copy_(original)
        if handle is not None:
            handle.remove()


def fewest(
    layers: list[Layer],
    drop: float,
    bound: float,
    deadline: Deadline,
    attempt: Callable[[tuple[str, ...]], tuple[T, float]],
) -> tuple[T | None, list[dict[str, Any]]]:
    """What ``attempt`` gives with the fewest layers in floats that meets the bound, and what was tried.

    ``attempt(paths)`` returns something and what it loses; ``drop`` is lost with none in floats. Where nothing that was
    tried meets the bound, the nearest is returned; None if that is what there was before.
    """
    failed, passed, count = 0, len(layers) + 1, _guess(layers, drop, bound)
    best: T | None = None
    least, lasted = drop, 0.0
    tried: list[dict[str, Any]] = []
    while failed + 1 < passed and len(tried) < ATTEMPTS and deadline.left > lasted:
        started = time.monotonic()
        made, lost = attempt(tuple(layer.path for layer in layers[:count]))
        lasted = time.monotonic() - started
        tried.append({"floats": count, "drop": lost})
        if lost <= bound:
            best, passed = made, count
        else:
            failed = count
            if passed > len(layers) and lost < least:
                best, least = made, lost
        count = (failed + passed) // 2 if passed <= len(layers) else min(2 * failed, len(layers))
    return best, tried


def _guess(layers: list[Layer], drop: float, bound: float) -> int:
    """How many layers to leave out if harms add up to ``drop``; at least one."""
    total = sum(layer.harm for layer in layers)
    left = total
    for count, layer in enumerate(layers, 1):
        left -= layer.harm
        if drop * left <= bound * total:
            return count
    return max(1, len(layers))
