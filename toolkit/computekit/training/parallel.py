"""Several processes that train one model: data parallel (DDP) or fully sharded (FSDP2), started by torchrun.

The samples of a step are shared out among the ranks, so ``--batch-size`` means the same for any number of them, and the
loss curve is that of one process up to the order of float sums (batch norms apart: they see their rank's share only).
"""

from __future__ import annotations

import contextlib
import copy
import os
import time
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel

from ..errors import ComputekitError
from .memory import blocks_of

_FULL = StateDictOptions(full_state_dict=True, cpu_offload=True)
_LOAD = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)


class Ranks:
    """The processes that train together; ``kind`` is none (one process), ddp or fsdp."""

    def __init__(self, kind: str = "none", rank: int = 0, world: int = 1) -> None:
        self.kind, self.rank, self.world = kind, rank, world
        self._gradients_ready = self._gradients_exchanged = 0.0

    @property
    def first(self) -> bool:
        """Whether this is the rank that writes files and talks."""
        return self.rank == 0

    def wrap(self, module: nn.Module, device: torch.device) -> nn.Module:
        """What to call in training: ``module`` itself, DDP around it, or a sharded copy of it."""
        if self.kind == "ddp":
            parallel = DistributedDataParallel(module, device_ids=[device.index] if device.type == "cuda" else None)
            if device.type == "cpu":
                # a lambda, because torch refuses hooks whose annotations are strings
                parallel.register_comm_hook(None, lambda _state, bucket: self._exchange(bucket))
            return parallel
        if self.kind == "fsdp":
            module = copy.deepcopy(module)
            mesh = init_device_mesh(device.type, (self.world,))
            for block in blocks_of(module):
                fully_shard(block, mesh=mesh)
            fully_shard(module, mesh=mesh)
        return module

    def share(self, count: int) -> slice:
        """Which of ``count`` samples are this rank's; the first ranks get one more where it does not come out even."""
        small, extra = divmod(count, self.world)
        start = self.rank * small + min(self.rank, extra)
        return slice(start, start + small + (self.rank < extra))

    @contextlib.contextmanager
    def synchronizing(self, wrapped: nn.Module, last: bool) -> Iterator[None]:
        """Exchange gradients only in the ``last`` backward pass of a step."""
        if isinstance(wrapped, FSDPModule):
            wrapped.set_requires_gradient_sync(last)
        if isinstance(wrapped, DistributedDataParallel) and not last:
            with wrapped.no_sync():
                yield
        else:
            yield

    def _exchange(self, bucket: Any) -> torch.futures.Future[Tensor]:
        """Average a bucket of gradients over the ranks, as DDP does without a hook, and note when."""
        self._gradients_ready = time.perf_counter()
        work = dist.all_reduce(bucket.buffer().div_(self.world), async_op=True)

        def done(future: torch.futures.Future[Any]) -> Tensor:
            self._gradients_exchanged = time.perf_counter()
            buffer: Tensor = future.value()[0]
            return buffer

        exchanged: torch.futures.Future[Tensor] = work.get_future().then(done)
        return exchanged

    def waited_s(self) -> float | None:
        """Seconds that the last backward pass waited for gradients after it had computed its last bucket.

        Known for DDP on the CPU only, else None; what overlaps with the backward pass does not count.
        """
        if not self._gradients_ready:
            return None
        waited = max(0.0, self._gradients_exchanged - self._gradients_ready)
        self._gradients_ready = self._gradients_exchanged = 0.0
        return waited

    def sum(self, value: float, device: torch.device) -> float:
        """The sum of ``value`` over all ranks, which meet on ``device``."""
        if self.world == 1:
            return value
        total = torch.tensor(value, dtype=torch.float64, device=device)
        dist.all_reduce(total)
        return float(total)

    def weights(self, wrapped: nn.Module, module: nn.Module) -> dict[str, Tensor]:
        """A copy of all weights by the names of ``module``; of a sharded model on the first rank only."""
        if self.kind == "fsdp":
            return dict[str, Any](get_model_state_dict(wrapped, options=_FULL))
        return {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}

    def load_weights(self, wrapped: nn.Module, module: nn.Module, weights: dict[str, Any]) -> None:
        """Put `weights` back into training."""
        if self.kind == "fsdp":
            set_model_state_dict(wrapped, weights, options=_LOAD)
        else:
            module.load_state_dict(weights)

    def optimizer_state(self, wrapped: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """The optimizer's state, of a sharded model put together on the first rank."""
        if self.kind == "fsdp":
            return get_optimizer_state_dict(wrapped, optimizer, options=_FULL)
        return optimizer.state_dict()

    def load_optimizer_state(self, wrapped: nn.Module, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
        """Put `optimizer_state` back."""
        if self.kind == "fsdp":
            set_optimizer_state_dict(wrapped, optimizer, state, options=_LOAD)
        else:
            optimizer.load_state_dict(state)


@contextlib.contextmanager
def joined(kind: str, device: torch.device) -> Iterator[tuple[Ranks, torch.device]]:
    """Join the processes that torchrun started: this one's `Ranks` and its own device.

    Raises:
        ComputekitError: ``kind`` is not "none" and torchrun did not start this process, or the other way round.
    """
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if kind == "none":
        if world > 1:
            raise ComputekitError(f"torchrun started {world} processes; say how they share: --parallel ddp or fsdp")
        yield Ranks(), device
        return
    if "RANK" not in os.environ:
        raise ComputekitError(
            f"--parallel {kind} needs several processes: torchrun --nproc-per-node 2 -m computekit train ..."
        )
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield Ranks(kind, dist.get_rank(), world), device
    finally:
        dist.destroy_process_group()
