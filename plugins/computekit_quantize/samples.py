"""Samples that a model is called with: of the data that was given, or an example. Importing this imports torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from computekit import ComputekitError
from computekit.models import ArchRef, examples

from . import calibration

if TYPE_CHECKING:
    from .flow import Job


def of_calibration(job: Job) -> torch.Tensor:
    """(N, ...): the samples to calibrate on; click.UsageError if no data is given."""
    data = job.calibration.load(job.goal.data, "calibrating a backend", job.model, job.goal.window)
    return calibration.samples(data, job.calibration.samples)


def example(job: Job, module: nn.Module, arch: ArchRef, count: int) -> torch.Tensor:
    """(count, ...): samples of the data where some is given, else random ones of the shape that is known.

    Raises:
        ComputekitError: nothing tells what goes into the module.
    """
    if job.calibration.data or job.goal.data:
        data = job.calibration.load(job.goal.data, "an example", job.model, job.goal.window)
        found = calibration.samples(data, count)
        return found if len(found) == count else found.repeat(-(-count // len(found)), *[1] * (found.ndim - 1))[:count]
    given, *others = examples.example_inputs(module, arch, shapes=job.race.inputs, batch=count)
    if others or not isinstance(given, torch.Tensor):
        raise ComputekitError(f"{job.model}: has several inputs, and backends run models with one: --backend torch")
    generator = torch.Generator().manual_seed(0)
    if given.is_floating_point():
        return torch.randn(given.shape, generator=generator)
    table = next((m for m in module.modules() if isinstance(m, nn.Embedding)), None)
    return given if table is None else torch.randint(table.num_embeddings, given.shape, generator=generator)


def call(module: nn.Module, inputs: torch.Tensor) -> None:
    """Run a module once, without gradients."""
    with torch.no_grad():
        module(inputs)
