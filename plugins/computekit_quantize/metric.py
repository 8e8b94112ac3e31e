"""Metrics: how good a model is, by itself or held against the original, and how much of that a change has lost."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from computekit import ComputekitError
from computekit.statistics import Estimate

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from computekit import Data
    from computekit.datasets import Split

SplitName = Literal["validation", "test"]

_REFERENCE_BYTES = 1 << 28
"""Bytes of the original's outputs that are kept to compare with; samples beyond that are left out."""


@dataclass(frozen=True)
class Score:
    """A metric on one split. ``harm`` is what layers are ranked by, lower is better: it tells more than the metric.

    ``outcomes`` (N,) is what each sample gave, where the metric is a mean over samples.
    """

    value: float
    harm: float
    estimate: Estimate
    outcomes: Tensor | None = None


class Metric(ABC):
    """A metric on the splits of one data set.

    ``key`` is its name in records; ``unit`` is that of `drop`.
    """

    key: str
    unit: str

    def __init__(self, data: Data, device: torch.device, batch_size: int) -> None:
        self.data, self.device, self.batch_size = data, device, batch_size

    @abstractmethod
    def score(self, module: nn.Module, split: SplitName, samples: int | None = None, name: str = "the model") -> Score:
        """The metric of ``module``, which is on the device, on a split or on ``samples`` of it, evenly spread.

        Raises:
            ComputekitError: the model, which errors call ``name``, cannot take the data, or gives NaN.
        """

    @abstractmethod
    def loss_of(self, before: Score, difference: float) -> float:
        """How much worse a model is, in ``unit``, whose metric differs by that much from the original's, ``before``."""

    def drop(self, before: Score, after: Score) -> float:
        """How much worse ``after`` is than ``before``, in ``unit``."""
        return self.loss_of(before, after.value - before.value)

    def drop_interval(self, before: Score, after: Score) -> Estimate:
        """`drop` with its paired interval where the metric has one."""
        difference = self.difference(before, after)
        ends = difference.interval and sorted(self.loss_of(before, end) for end in difference.interval)
        interval = (ends[0], ends[1]) if ends else None
        method = f"{self.unit} lost on the validation split; {difference.method}"
        return Estimate(self.drop(before, after), interval, difference.confidence, method)

    def difference(self, before: Score, after: Score) -> Estimate:
        """After minus before, with a paired interval where the metric has one."""
        return Estimate(after.value - before.value, None, 0.0, f"{self.key} after minus before, on the same samples")

    def samples(self, split: SplitName, count: int | None) -> Split:
        """The split, or about ``count`` samples evenly spread over it (splits may be sorted by class)."""
        from computekit.datasets import Split

        whole = self.data.test if split == "test" else self.data.validation
        index = spread(len(whole), count)
        return Split(whole.inputs[index], whole.targets[index])


class OfTask(Metric):
    """Accuracy or perplexity, as the data's task has it."""

    def __init__(self, data: Data, device: torch.device, batch_size: int) -> None:
        super().__init__(data, device, batch_size)
        self.key = "accuracy" if data.task == "classification" else "perplexity"
        self.unit = "points of accuracy" if self.key == "accuracy" else "% of perplexity"

    def score(self, module: nn.Module, split: SplitName, samples: int | None = None, name: str = "the model") -> Score:
        from computekit.evaluation import evaluate

        part = self.samples(split, samples)
        found = evaluate(module, part, self.data.task, self.device, self.batch_size, name=name)
        about = found.quantity()
        estimate = Estimate(found.value, found.interval, about["confidence"] or 0.0, found.method)
        return Score(found.value, found.loss, estimate, found.outcomes)

    def loss_of(self, before: Score, difference: float) -> float:
        return -100 * difference if self.key == "accuracy" else 100 * difference / before.value

    def difference(self, before: Score, after: Score) -> Estimate:
        from computekit import statistics

        assert before.outcomes is not None and after.outcomes is not None
        if self.key == "accuracy":
            return statistics.paired_difference(before.outcomes.tolist(), after.outcomes.tolist()).difference
        ratio = statistics.mean_interval((after.outcomes - before.outcomes).tolist()).through(_exp)
        change = ratio.through(lambda factor: before.value * (factor - 1))
        method = "after minus before; t interval of the mean difference in cross-entropy over windows, paired"
        return Estimate(after.value - before.value, change.interval, change.confidence, method)


class Cosine(Metric):
    """Mean cosine of the outputs to those of ``original`` for the same inputs; targets are not looked at.

    Outputs are logits (for text, of each token), or else the mean over tokens of the last hidden state: what users of
    an encoder take from it. ``original`` must stay as it is.
    """

    key, unit = "cosine", "points of cosine"
    compared = "the outputs"

    def __init__(self, data: Data, device: torch.device, batch_size: int, original: nn.Module) -> None:
        super().__init__(data, device, batch_size)
        self.original = original
        one = self._outputs(original, data.validation.inputs[:1], "the original model")
        self.room = max(1, _REFERENCE_BYTES // (one.numel() * one.element_size()))
        self._references: dict[SplitName, Tensor] = {}

    def score(self, module: nn.Module, split: SplitName, samples: int | None = None, name: str = "the model") -> Score:
        import torch

        from computekit import statistics

        if split not in self._references:
            self._references[split] = self._all_outputs(self.original, split, "the original model")
        reference = self._references[split]
        index = spread(len(reference), samples)
        outputs = self._all_outputs(module, split, name, samples)
        cosines = torch.nn.functional.cosine_similarity(outputs, reference[index], dim=-1)
        each = cosines.double().flatten(1).mean(1) if cosines.ndim > 1 else cosines.double()
        mean = statistics.mean_interval(each.tolist())
        method = f"cosine of {self.compared} to the original's: {mean.method}"
        estimate = Estimate(mean.value, mean.interval, mean.confidence, method)
        return Score(mean.value, 1 - mean.value, estimate, each)

    def loss_of(self, before: Score, difference: float) -> float:
        return -100 * difference

    def difference(self, before: Score, after: Score) -> Estimate:
        from computekit import statistics

        assert before.outcomes is not None and after.outcomes is not None
        return statistics.mean_interval((after.outcomes - before.outcomes).tolist())

    def _all_outputs(self, module: nn.Module, split: SplitName, name: str, samples: int | None = None) -> Tensor:
        """(N, D) or (N, T, D): the outputs for as many samples of the split as references are kept of."""
        import torch

        inputs = self.samples(split, self.room).inputs
        inputs = inputs[spread(len(inputs), samples)]
        parts = [inputs[start : start + self.batch_size] for start in range(0, len(inputs), self.batch_size)]
        return torch.cat([self._outputs(module, part, name) for part in parts])

    def _outputs(self, module: nn.Module, inputs: Tensor, name: str) -> Tensor:
        import torch

        from computekit.evaluation import floating_dtype, forward

        inputs = inputs.to(self.device)
        training = module.training
        module.eval()
        try:
            with torch.no_grad():
                found: Any = forward(
                    module, inputs.to(floating_dtype(module)) if inputs.is_floating_point() else inputs, name
                )
        finally:
            module.train(training)
        hidden = getattr(found, "last_hidden_state", None)
        if hidden is not None:
            found, self.compared = hidden.mean(1), "the mean over tokens of the last hidden state"
        if not isinstance(found, torch.Tensor) or not found.is_floating_point() or found.ndim < 2:
            raise ComputekitError(
                f"{name} returned {_described(found)}, which has no cosine; --metric takes a callable"
            )
        if found.shape[-1] == 1 and found[0].numel() == 1:
            raise ComputekitError(f"{name} gives one number per sample, which has no cosine; --metric takes a callable")
        if not bool(torch.isfinite(found).all()):
            raise ComputekitError(f"{name} gives NaN or infinite outputs; its weights or the inputs are broken")
        of_tokens = self.data.task == "language-modeling" and found.ndim == 3
        return (found if of_tokens else found.flatten(1)).float().cpu()


class Own(Metric):
    """What a callable of the user's says: ``callable(module, split)`` returns a finite number.

    ``split`` has ``inputs`` (N, ...) and ``targets``; the module is in eval mode on the run's device.
    """

    key = "metric"

    def __init__(
        self, data: Data, device: torch.device, batch_size: int, reference: str, call: Callable[..., Any], higher: bool
    ) -> None:
        super().__init__(data, device, batch_size)
        self.reference, self.call, self.higher = reference, call, higher
        self.unit = f"lost of {reference}"

    def score(self, module: nn.Module, split: SplitName, samples: int | None = None, name: str = "the model") -> Score:
        import torch

        module.eval()
        try:
            with torch.no_grad():
                given = self.call(module, self.samples(split, samples))
        except Exception as error:  # anybody's code, which may fail in any way
            said = (str(error).splitlines() or [""])[0]
            raise ComputekitError(
                f"metric {self.reference} failed on {name}: {type(error).__name__}: {said}"
            ) from error
        try:
            value = float(given)
        except (TypeError, ValueError, RuntimeError):
            raise ComputekitError(
                f"metric {self.reference} returned {_described(given)} for {name}; it must return one number"
            ) from None
        if not math.isfinite(value):
            raise ComputekitError(f"metric {self.reference} returned {value} for {name}")
        way = "higher" if self.higher else "lower"
        return Score(
            value, -value if self.higher else value, Estimate(value, None, 0.0, f"{self.reference}; {way} is better")
        )

    def loss_of(self, before: Score, difference: float) -> float:
        return -difference if self.higher else difference


def make(
    name: str | None, direction: str | None, data: Data, device: torch.device, batch_size: int, original: nn.Module
) -> Metric:
    """The metric called ``name``; None is what the data's task has.

    Raises:
        ComputekitError: the data has no such metric, or the callable cannot be imported.
    """
    if name is not None and ":" in name:
        from computekit.imports import import_object

        call = import_object(name, "metric")
        if not callable(call):
            raise ComputekitError(f"metric {name!r} is {_described(call)}, not a callable")
        return Own(data, device, batch_size, name, call, direction != "lower")
    if name == "cosine":
        return Cosine(data, device, batch_size, original)
    if data.task == "inputs":
        raise ComputekitError(f"data {data.name} has inputs and no targets: say --metric cosine, or module:callable")
    usual = OfTask(data, device, batch_size)
    if name is not None and name != usual.key:
        raise ComputekitError(
            f"data {data.name} is for {data.task}: its metric is {usual.key}, not {name} (cosine goes with any data)"
        )
    return usual


def _exp(value: float) -> float:
    return math.exp(min(value, 700.0))


def spread(size: int, count: int | None) -> slice:
    """About ``count`` of ``size`` places, evenly spread: splits may be sorted by class."""
    return slice(None) if count is None or count >= size else slice(0, count * (size // count), size // count)


def _described(value: Any) -> str:
    import torch

    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)} and type {str(value.dtype).removeprefix('torch.')}"
    return f"a {type(value).__name__}"
