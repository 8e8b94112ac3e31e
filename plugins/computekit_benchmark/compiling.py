"""torch.compile in a process that holds several models.

Dynamo keeps at most 8 compiled versions per code object and then runs the rest eagerly, without an error. Models of
one class share their code objects, so the ninth model of a class would be timed uncompiled. `allow` raises the limit to
what the job needs and makes a hit an error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from torch import nn


def allow(versions: int) -> None:
    """Let each code object be compiled ``versions`` times, and fail instead of falling back to eager."""
    import torch._dynamo.config as config

    # Each version may be compiled once with static and once with dynamic shapes.
    config.recompile_limit = max(config.recompile_limit, 2 * versions + 8)
    config.accumulated_recompile_limit = max(config.accumulated_recompile_limit, 16 * (2 * versions + 8))
    config.fail_on_recompile_limit_hit = True


def compiled(module: nn.Module) -> nn.Module:
    """``module`` compiled for the shapes it will be called with."""
    import torch

    return cast("nn.Module", torch.compile(module, dynamic=False))
