"""Inside a measuring process: the runnable module of a subject, its inputs, and one call of it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from computekit import ComputekitError, devices, load_module, models
from computekit.evaluation import floating_dtype
from computekit.models import ArchRef

from . import samples
from .jobs import Job, Subject

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch
    from torch import nn


class ModelFault(ComputekitError):
    """A model cannot be measured; ``label`` says which."""

    def __init__(self, label: str, problem: str) -> None:
        super().__init__(label, problem)
        self.label, self.problem = label, problem

    def __str__(self) -> str:
        return f"{self.label}: {self.problem}"


@contextmanager
def blaming(label: str, doing: str) -> Iterator[None]:
    """Turn whatever a model raises into a `ModelFault` that names the model and what it was doing."""
    try:
        yield
    except ModelFault:
        raise
    except ComputekitError as error:
        raise ModelFault(label, str(error)) from error
    except (Exception, SystemExit) as error:
        text = "".join(f": {line}" for line in str(error).splitlines()[:1])
        raise ModelFault(label, f"{doing} failed with {type(error).__name__}{text}") from error


def prepare(job: Job) -> torch.device:
    """Fix threads and seed as the job says, and return its device."""
    import torch

    if job.threads is not None:
        torch.set_num_threads(job.threads)
    torch.manual_seed(job.seed)
    return devices.resolve(job.device)


@dataclass(frozen=True)
class Loaded:
    """A runnable module in eval mode on the job's device, its architecture and the file's metadata."""

    module: nn.Module
    arch: ArchRef
    metadata: dict[str, Any]


def load(subject: Subject, job: Job) -> Loaded:
    """Build or read ``subject``; its parameters need no gradients."""
    import torch

    given = ArchRef(subject.arch, subject.arch_args) if subject.arch else None
    with blaming(subject.label, "loading"):
        if subject.path is None:
            assert given is not None
            loaded = Loaded(models.build(given).eval(), given, {})
        else:
            loaded = Loaded(*load_module(subject.path, given, trust_pickle=subject.trust_pickle))
        loaded.module.to(torch.device(job.device))
        for parameter in loaded.module.parameters():
            parameter.requires_grad_(False)
    return loaded


def example_inputs(model: Loaded, job: Job, batch: int) -> tuple[Any, ...]:
    """Positional arguments of one forward call for ``batch`` samples, on the job's device.

    They come from the test split of the job's data set, else from ``--input-shape``, else from the architecture's own
    example: see `examples.example_inputs`.
    """
    import torch

    from computekit.models import examples

    values: tuple[Any, ...]
    if job.samples is not None:
        values = (examples.as_floats(samples.load(job.samples).batch(batch), floating_dtype(model.module)),)
    else:
        values = examples.example_inputs(model.module, model.arch, shapes=job.inputs, batch=batch, seed=job.seed)
    return tuple(value.to(job.device) if isinstance(value, torch.Tensor) else value for value in values)


def caller(module: nn.Module, inputs: tuple[Any, ...]) -> Callable[[], Any]:
    """One forward call without gradients, as a function of nothing."""
    import torch

    def call() -> Any:
        with torch.inference_mode():
            return module(*inputs)

    return call


def tensors(output: Any) -> Iterator[torch.Tensor]:
    """Every tensor in what a model returned: tuples, dicts and output classes are looked into."""
    import torch

    if isinstance(output, torch.Tensor):
        yield output
    elif isinstance(output, (dict, list, tuple)):
        for item in output.values() if isinstance(output, dict) else output:
            yield from tensors(item)


def first_tensor(output: Any) -> torch.Tensor | None:
    """The first of `tensors`."""
    return next(tensors(output), None)
