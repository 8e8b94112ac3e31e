"""Samples that a model is called with: of the data that was given, or an example. Importing this imports torch.

Data have one input. What else a model is called with is the same for every sample: it comes from --input-shape, or from
the architecture's example.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

import computekit
from computekit import ComputekitError, inputs
from computekit.models import ArchRef, examples

from . import calibration

if TYPE_CHECKING:
    from .flow import Job


def load(job: Job, path: Path | None = None) -> tuple[nn.Module, ArchRef]:
    """The model of the job, or of another file of it, which can be called with samples of data alone.

    Raises:
        ComputekitError: it cannot be run.
    """
    module, arch, _ = computekit.load_module(path or job.model, job.arch, trust_pickle=job.trust_pickle)
    if others := _others(job, module, arch):

        def complete(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            return ((*args, *repeated(others, 1, len(args[0]), args[0].device)) if len(args) == 1 else args), kwargs

        module.register_forward_pre_hook(complete, with_kwargs=True)
    return module, arch


def of_calibration(job: Job) -> torch.Tensor:
    """(N, ...): the samples to calibrate on; click.UsageError if no data is given."""
    data = job.calibration.load(job.goal.data, "calibrating a backend", job.model, job.goal.window)
    return calibration.samples(data, job.calibration.samples)


def example(job: Job, module: nn.Module, arch: ArchRef, count: int) -> tuple[Any, ...]:
    """The positional arguments of one call for ``count`` samples: tensors (count, ...), and numbers.

    Raises:
        ComputekitError: nothing tells what goes into the module.
    """
    if job.calibration.data or job.goal.data:
        data = job.calibration.load(job.goal.data, "an example", job.model, job.goal.window)
        found = calibration.samples(data, count)
        first = found.repeat(-(-count // len(found)), *[1] * (found.ndim - 1))[:count]
    else:
        first = examples.example_inputs(module, arch, shapes=job.race.inputs, batch=count)[0]
        if not isinstance(first, torch.Tensor):
            raise ComputekitError(f"{job.model}: the first input is no tensor: --backend torch needs none")
        first = _random(first, module)
    return (first, *repeated(_others(job, module, arch), 1, count))


def repeated(values: Sequence[Any], batch: int, count: int, device: torch.device | None = None) -> tuple[Any, ...]:
    """Arguments for ``count`` samples, made of the first of ``batch`` samples; what has no batch stays as it is."""

    def of(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        batched = value.ndim > 0 and len(value) == batch
        return (value[:1].repeat(count, *[1] * (value.ndim - 1)) if batched else value).to(device)

    return tuple(map(of, values))


def _others(job: Job, module: nn.Module, arch: ArchRef) -> tuple[Any, ...]:
    """What goes into the module besides the samples, for one sample."""
    try:
        return examples.example_inputs(module, arch, shapes=job.race.inputs)[1:]
    except ComputekitError:  # nothing tells of any
        return ()


def _random(first: torch.Tensor, module: nn.Module) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    if first.is_floating_point():
        return torch.randn(first.shape, generator=generator)
    tokens = inputs.vocabulary(module)
    return first if tokens is None else torch.randint(tokens, first.shape, generator=generator)


def call(module: nn.Module, arguments: Sequence[Any]) -> None:
    """Run a module once, without gradients."""
    with torch.no_grad():
        module(*arguments)
