"""Memory of training: recomputing activations, the peak, and what to say when it does not suffice."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from ..errors import ComputekitError


class OutOfMemory(ComputekitError):
    """A training step did not fit; ``parts`` are the bytes that are known of, by name."""

    def __init__(self, batch: int, parts: dict[str, int], device: torch.device) -> None:
        super().__init__(batch, parts, device)
        self.batch, self.parts, self.device = batch, parts, device

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {size / 1e6:,.1f} MB" for name, size in self.parts.items())
        return (
            f"out of memory on {self.device} with {self.batch} samples at a time ({parts}); "
            "try a smaller --batch-size or --precision bf16; train can also --accumulate and --recompute"
        )


def held_bytes(module: nn.Module, optimizer: torch.optim.Optimizer, activations: int) -> dict[str, int]:
    """Bytes by what holds them; ``activations`` are what a forward pass writes, which is the most that it can keep."""
    weights = sum(p.numel() * p.element_size() for p in module.parameters())
    gradients = sum(p.numel() * p.element_size() for p in module.parameters() if p.requires_grad)
    copies = {"AdamW": 2, "Lamb": 2, "SGD": 1}.get(type(optimizer).__name__, 0)
    return {
        "weights": weights,
        "gradients": gradients,
        "optimizer": copies * gradients,
        "activations at most": activations,
    }


# -- recomputing activations -----------------------------------------------------------------------------------------


def blocks_of(module: nn.Module) -> list[nn.Module]:
    """The repeated blocks: members of the outermost containers that hold at least two modules of one class."""
    for _, container in module.named_modules():
        if isinstance(container, (nn.ModuleList, nn.Sequential)):
            children = [child for child in container if any(child.children())]
            kinds = {type(child) for child in children}
            if len(children) >= 2 and len(kinds) == 1:
                return children
    return []


def recompute(module: nn.Module, name: str) -> list[str]:
    """Make each repeated block of ``module`` forget its activations and compute them again in the backward pass.

    Memory for activations falls to one per block boundary plus one block's own (Chen et al. 2016, arXiv:1604.06174).
    Returns the names of the blocks; `keep` undoes it. Raises ComputekitError if ``module`` has no repeated blocks.
    """
    blocks = blocks_of(module)
    if not blocks:
        raise ComputekitError(
            f"{name} has no repeated blocks to --recompute: an nn.Sequential or nn.ModuleList of modules of one class"
        )
    for block in blocks:
        again = functools.partial(_contexts, block)
        block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False, context_fn=again)
    return [key for key, child in module.named_modules() if any(child is block for block in blocks)]


def keep(module: nn.Module) -> None:
    """Undo `recompute`."""
    for block in blocks_of(module):
        vars(block).pop("forward", None)


def _contexts(block: nn.Module) -> tuple[Any, Any]:
    """Contexts of the first and of the repeated forward pass of ``block``."""
    return contextlib.nullcontext(), _still(block)


@contextlib.contextmanager
def _still(block: nn.Module) -> Iterator[None]:
    """Keep batch norms from counting a batch a second time when the block is computed again."""
    norms = [m for m in block.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]
    saved = [(norm.momentum, norm.num_batches_tracked) for norm in norms]
    for norm in norms:
        norm.momentum = 0.0
        norm.num_batches_tracked = None
    try:
        yield
    finally:
        for norm, (momentum, count) in zip(norms, saved, strict=True):
            norm.momentum, norm.num_batches_tracked = momentum, count


# -- the peak --------------------------------------------------------------------------------------------------------


def reset_peak(device: torch.device) -> None:
    """Make `peak_bytes` start again from what is held now, where the system allows it."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    elif Path("/proc/self/clear_refs").exists():
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def peak_bytes(device: torch.device) -> int | None:
    """The largest memory since `reset_peak`: allocated by torch on a CUDA device, resident set of the process else."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    status = Path("/proc/self/status")
    if not status.exists():
        return None
    peak = next(line for line in status.read_text(encoding="ascii", errors="replace").splitlines() if "VmHWM" in line)
    return int(peak.split()[1]) * 1024
