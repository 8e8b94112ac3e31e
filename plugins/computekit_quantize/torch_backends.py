"""The backends that run the model file's own module: torch as it is, and compiled by torch.compile."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from .backend import Backend

if TYPE_CHECKING:
    from torch import nn

    from computekit import ModelFile

_VERSIONS = 64


def _eager(_source: ModelFile, build: Callable[[], nn.Module]) -> nn.Module:
    return build()


def _compiled(_source: ModelFile, build: Callable[[], nn.Module]) -> nn.Module:
    """The module compiled by inductor with its weights as constants, at the first call; without gradients only.

    Dynamo keeps 8 compiled versions per code object and then runs the rest eagerly without a word, so the limit is
    raised, and reaching it becomes an error. Freezing can only be set for the whole process
    (``torch.compile(options=...)`` takes it, and then fails on quantized operators).
    """
    import torch
    import torch._dynamo.config
    import torch._inductor.config

    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, _VERSIONS)
    torch._dynamo.config.accumulated_recompile_limit = max(
        torch._dynamo.config.accumulated_recompile_limit, 16 * _VERSIONS
    )
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    torch._inductor.config.freezing = True
    module = build()
    for parameter in module.parameters():
        parameter.requires_grad_(False)
    module.compile()
    return module


TORCH = Backend("torch", "torch, layer by layer", _eager)
COMPILE = Backend("compile", "torch.compile with its weights as constants; compiles at the first call", _compiled,
                  activations=("dynamic", "float"))  # fmt: skip
