"""The test split as a file, so that the many measuring processes need not load the data set's packages again."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from computekit import Data, Split, files, load_data, load_module
from computekit.errors import FileProblem, MissingExtra, UnknownName
from computekit.models import ArchRef
from computekit.models.modules import save_archive

from .jobs import Job

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Samples:
    """A test split and its task."""

    task: str
    split: Split

    def batch(self, size: int) -> torch.Tensor:
        """The first ``size`` inputs, repeated where there are fewer."""
        inputs = self.split.inputs
        return inputs.repeat(-(-size // len(inputs)), *[1] * (inputs.dim() - 1))[:size]


def save(data: Data, path: Path) -> str:
    """Write the test split of ``data`` to ``path`` and return the path as text."""
    document = {"task": data.task, "inputs": data.test.inputs, "targets": data.test.targets}
    with files.atomic(path) as temporary:
        save_archive(document, temporary)
    return str(path)


def load(path: str) -> Samples:
    """The inverse of `save`."""
    import torch

    document = torch.load(path, weights_only=True)
    return Samples(document["task"], Split(document["inputs"], document["targets"]))


def choose(name: str | None, job: Job) -> Data | None:
    """The data set called ``name``; without a name and an input shape, the one that the job's first model remembers.

    None where it remembers none, or where this machine lacks it: then the architecture's own example must do.
    """
    first = job.subjects[0]
    if name is not None:
        return load_data(name, model=first.path)
    if job.inputs is not None or first.path is None:
        return None
    arch = ArchRef(first.arch, first.arch_args) if first.arch else None
    remembered = load_module(first.path, arch, trust_pickle=first.trust_pickle)[2].get("data")
    try:
        return load_data(remembered, model=first.path) if isinstance(remembered, str) else None
    except (FileProblem, MissingExtra, UnknownName):
        return None
