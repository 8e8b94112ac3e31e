"""Example inputs: what one forward call of a module takes, for tools that trace or run a model without data.

Importing this imports torch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from .. import host
from ..datasets import Data
from ..errors import ComputekitError
from .modules import ArchRef


def example_inputs(
    module: nn.Module,
    arch: ArchRef,
    *,
    data: Data | None = None,
    sample_shape: tuple[int, ...] | None = None,
    batch: int = 1,
) -> tuple[Any, ...]:
    """Positional arguments of one forward call for ``batch`` samples.

    They are the first training samples of ``data``; else of ``sample_shape`` (one sample, without the batch), as
    token ids 0 where the module begins with an embedding, as zeros otherwise; else what the architecture gives.

    Raises:
        ComputekitError: nothing tells what goes into the module.
    """
    if data is not None:
        return (data.train.inputs[:batch],)
    if sample_shape is not None:
        first = next((m for m in module.modules() if next(m.parameters(recurse=False), None) is not None), None)
        dtype = torch.long if isinstance(first, nn.Embedding) else torch.get_default_dtype()
        return (torch.zeros(batch, *sample_shape, dtype=dtype),)
    example = None if ":" in arch.name else host.current().architecture(arch.name).example
    if example is None:
        raise ComputekitError(
            f"nothing tells what goes into {arch.name}; say it with --input-shape 3,224,224 (one sample)"
        )
    return tuple(example(batch, **arch.args))
