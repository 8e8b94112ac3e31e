"""Calibration: what goes into the layers of a model on real data, gathered while the model runs.

An observer keeps a summary of the inputs that it is shown (a range, a second moment), never the inputs themselves, so
that memory follows the summaries of the layers that are observed at a time, and not the amount of data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import click

import computekit
from computekit import ComputekitError, options

if TYPE_CHECKING:
    from pathlib import Path

    import torch
    from torch import nn

    from computekit.text import Window


class Observer(Protocol):
    """Takes in what goes into one layer, a batch at a time: ``observer(input)``, in the layer's own input shape."""

    def __call__(self, input: torch.Tensor) -> None: ...


O = TypeVar("O", bound=Observer)  # noqa: E741


_SAMPLES = 128


@dataclass(frozen=True)
class Calibration:
    """What to calibrate on: the name of a data set, None where the one of --data will do, and how many samples."""

    data: str | None
    asked_samples: int | None

    @property
    def samples(self) -> int:
        """How many samples: what was asked for, else the default."""
        return self.asked_samples or _SAMPLES

    def load(self, otherwise: str | None, who: str, model: Path, window: Window | None) -> computekit.Data:
        """The data to calibrate ``model`` on, else ``otherwise``, which --data gave (click.UsageError: neither).

        A text comes in the tokens that ``model`` reads, cut as --window says. ``who`` needs the data, as errors say.
        """
        name = self.data or otherwise
        if name is None:
            raise click.UsageError(f"{who} needs data to calibrate on: --calibration DATA, or --data DATA")
        return computekit.load_data(name, model=model, window=window)

    def check_unused(self, who: str) -> None:
        """click.UsageError if data was given although ``who`` looks at none."""
        if self.data is not None:
            raise click.UsageError(f"--calibration: {who} looks at no data")
        if self.asked_samples is not None:
            raise click.UsageError(f"--calibration-samples: {who} looks at no data")


calibration_options = options.gathered(
    "calibration",
    lambda calibration, calibration_samples: Calibration(calibration, calibration_samples),
    click.option("--calibration", type=options.HostNames("datasets", "data"),
                 help="Data set whose training split shows what goes into the layers, as --data takes it.  "
                      "[default: --data]"),
    click.option("--calibration-samples", type=click.IntRange(min=1),
                 help="Samples to calibrate on, spread evenly over the training split.  [default: 128]"),
    section="Calibration",
)  # fmt: skip
"""Options that become one argument ``calibration``."""


def samples(data: computekit.Data, count: int) -> torch.Tensor:
    """``count`` inputs (count, ...) of the training split, spread evenly over it; all of them if it has fewer.

    Spread, because data may be sorted by class or topic; not drawn, so that no seed changes the result.
    """
    import torch

    inputs = data.train.inputs
    count = min(count, len(inputs))
    return inputs[torch.arange(count) * len(inputs) // count]


def batches(inputs: torch.Tensor, module: nn.Module, size: int) -> Iterator[torch.Tensor]:
    """``inputs`` in pieces of ``size`` samples, on the device of ``module`` and in its floating-point type."""
    import torch

    from computekit.evaluation import floating_dtype

    device = next((tensor.device for tensor in module.parameters()), torch.device("cpu"))
    dtype = floating_dtype(module) if inputs.is_floating_point() else inputs.dtype
    for piece in torch.split(inputs, size):
        yield piece.to(device, dtype)


def observe(
    module: nn.Module,
    batches: Iterable[torch.Tensor],
    names: Iterable[str],
    make_observer: Callable[[str, nn.Module], O],
) -> dict[str, O]:
    """Run ``module`` in eval mode over ``batches`` and show the inputs of its layers ``names`` to observers.

    ``make_observer(name, layer)`` is called when a layer first runs; a layer that never runs is not in the result. A
    layer that runs several times in a forward call shows all of its inputs to its one observer.

    Raises:
        ComputekitError: the model cannot take the data, or the input of a layer holds NaN or infinity.
    """
    import torch

    from computekit.evaluation import forward

    training = module.training
    module.eval()
    try:
        with watching(module, names, make_observer) as observers, torch.no_grad():
            for batch in batches:
                forward(module, batch, "the model to calibrate")
    finally:
        module.train(training)
    return observers


@contextmanager
def watching(
    module: nn.Module, names: Iterable[str], make_observer: Callable[[str, nn.Module], O]
) -> Iterator[dict[str, O]]:
    """Within this context, whatever runs ``module`` shows the inputs of its layers ``names``: see `observe`."""
    observers: dict[str, O] = {}

    def watch(name: str) -> Callable[..., None]:
        def before(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            input = args[0] if args else next(iter(kwargs.values()))
            if not bool(input.isfinite().all()):
                raise ComputekitError(
                    f"calibration: NaN or infinity goes into layer {name!r}; its weights or the data are broken"
                )
            if name not in observers:
                observers[name] = make_observer(name, layer)
            observers[name](input.detach())

        return before

    handles = [module.get_submodule(name).register_forward_pre_hook(watch(name), with_kwargs=True) for name in names]
    try:
        yield observers
    finally:
        for handle in handles:
            handle.remove()
