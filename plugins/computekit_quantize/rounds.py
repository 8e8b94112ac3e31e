"""Models timed in turns: each round calls every model once, in a random order, on the same inputs.

The clock is CPU time for one thread and wall time for several. A model's speed-up is the median over its rounds of the
time of the first model over its own, in the same round, so that a noisy moment hits both.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

import computekit

if TYPE_CHECKING:
    import torch
    from torch import nn

    from computekit.statistics import Estimate

MIN_ROUNDS, MAX_ROUNDS = 7, 60

_SURE = 0.99
"""Confidence that one is slower: higher than for one look, since it is looked at after every round."""

_ALIKE = 0.03
"""Two models whose times surely differ by less than this share are equally fast."""


T = TypeVar("T", bound="Timed")


@dataclass
class Timed:
    """One model; ``seconds`` holds one call for each round that it took part in, by the number of the round;
    ``ratios`` those of the first model over them."""

    name: str
    module: nn.Module | None = None
    seconds: dict[int, float] = field(default_factory=dict)
    ratios: list[float] = field(default_factory=list)

    @property
    def speedup(self) -> Estimate | None:
        """Over the first model: the median with its interval; None before the first round."""
        from computekit.statistics import quantile_interval

        return quantile_interval(self.ratios) if self.ratios else None

    @property
    def speed(self) -> float:
        """The median speed-up; 0 before the first round."""
        return self.speedup.value if self.speedup else 0.0


class Rounds:
    """Times models on ``inputs``, which are on the run's device, against ``first``."""

    def __init__(self, step: computekit.StepRun, first: Timed, inputs: torch.Tensor) -> None:
        import torch

        self.step, self.first, self.inputs = step, first, inputs
        self.clock = "cpu" if torch.get_num_threads() == 1 else "wall"
        self._now: Callable[[], float] = time.process_time if self.clock == "cpu" else time.perf_counter
        self._chance = random.Random(0)
        self._count = 0

    def warm_up(self, model: Timed) -> float:
        """Two calls, of which the second one's seconds are returned: what is compiled at the first, or made for shapes
        that come again, is not timed."""
        import torch

        assert model.module is not None
        with torch.no_grad():
            model.module(self.inputs)
            return self._seconds(model.module)

    def all_of(self, models: Sequence[Timed], seconds: float) -> None:
        """Rounds of all ``models`` for about ``seconds`` each, at least `MIN_ROUNDS`."""
        deadline = time.monotonic() + seconds * len(models)
        with self.step.progress(MAX_ROUNDS, "timing", "round") as bar:
            for done in range(MAX_ROUNDS):
                if done >= MIN_ROUNDS and time.monotonic() > deadline:
                    break
                self._round(models)
                bar.update()

    def until_apart(self, models: Sequence[Timed], seconds: float) -> None:
        """More rounds of those that may be the fastest, for ``seconds`` each at most, till it is clear which one is."""
        contending = _contending(models)
        deadline = time.monotonic() + seconds * len(contending)
        while len(contending) > 1 and max(len(model.ratios) for model in contending) < 2 * MAX_ROUNDS:
            new = any(len(model.ratios) < MIN_ROUNDS for model in contending)
            if time.monotonic() > deadline and not new:
                break
            self._round([self.first, *contending])
            contending = _contending(models)

    def _round(self, models: Sequence[Timed]) -> None:
        import torch

        spent = {}
        with torch.no_grad():
            for index in self._chance.sample(range(len(models)), len(models)):
                module = models[index].module
                assert module is not None
                spent[index] = self._seconds(module)
        base = spent[next(index for index, model in enumerate(models) if model is self.first)]
        for index, model in enumerate(models):
            model.seconds[self._count] = spent[index]
            model.ratios.append(base / spent[index])
        self._count += 1

    def _seconds(self, module: nn.Module) -> float:
        """Of one call."""
        from computekit import devices

        devices.synchronize(self.step.device)
        start = self._now()
        module(self.inputs)
        devices.synchronize(self.step.device)
        return self._now() - start


def fastest(models: Sequence[T]) -> T:
    """The one that was faster than each other in half of their common rounds: nearer to the point than their speed-ups,
    which share the noise of the first model."""
    best = max(models, key=lambda model: model.speed)
    for model in models:
        pairs = _pairs(model, best)
        if len(pairs) >= MIN_ROUNDS and statistics.median(pairs) < 1:
            best = model
    return best


def _contending(models: Sequence[Timed]) -> list[Timed]:
    """The fastest, and those that may be as fast as it, or faster: who were not timed often enough are among them."""
    if not models:
        return []
    best = fastest(models)
    return [model for model in models if model is best or not _slower(model, best)]


def _slower(model: Timed, best: Timed) -> bool:
    """Whether ``model`` is surely slower than ``best``, or surely so near that it does not matter."""
    from computekit.statistics import quantile_interval

    pairs = _pairs(model, best)
    interval = quantile_interval(pairs, confidence=_SURE).interval if len(pairs) >= MIN_ROUNDS else None
    return interval is not None and (interval[0] > 1 or (interval[0] > 1 - _ALIKE and interval[1] < 1 + _ALIKE))


def _pairs(model: Timed, other: Timed) -> list[float]:
    """The time of ``model`` over that of ``other``, in their common rounds."""
    return [model.seconds[number] / other.seconds[number] for number in sorted(model.seconds.keys() & other.seconds)]
