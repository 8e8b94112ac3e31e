"""What a device really does: matrix products per data type, copying, the cost of one small call, all-reduce."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from computekit import devices

from .jobs import Job
from .loading import prepare

if TYPE_CHECKING:
    import torch

CALLS = 7
GROW_UNTIL_S = 0.05
"""Matrices grow until one product takes this long; larger ones are no faster by then."""

TOO_SLOW_S = 2.0
LARGEST = {"cpu": 4096, "cuda": 16384}
COPY_BYTES = {"cpu": 1 << 28, "cuda": 1 << 30}
"""Far larger than any cache, so that copying is paced by memory."""


def measure(job: Job) -> dict[str, Any]:
    """Peak rates and latencies of the job's device, each as the list of its samples (see the keys below).

    ``matmul``: by data type, samples in FLOP/s (2 n^3 per product of n x n matrices) and the n that was fastest, or the
    reason why there is none. ``copy_bytes_s``: bytes read plus bytes written per second, as STREAM counts them.
    ``launch_s``: one addition of two numbers, waited for.
    """
    import torch

    device = prepare(job)
    kinds = ["fp64", "fp32", "bf16", "fp16", "int8"]
    if device.type == "cuda":
        kinds.insert(1, "tf32")
    with torch.inference_mode():
        return {
            "matmul": {kind: _matmul(kind, device) for kind in kinds},
            "copy_bytes_s": _copy(device),
            "launch_s": _launch(device),
        }


def _matmul(kind: str, device: torch.device) -> dict[str, Any]:
    """The fastest size of square matrices for one data type."""
    import torch

    best: dict[str, Any] = {}
    n = 256
    torch.backends.cuda.matmul.allow_tf32 = kind == "tf32"
    while n <= LARGEST.get(device.type, 4096):
        try:
            product = _product(kind, n, device)
            warm_up = _seconds(product, device, 1)[0]
            seconds = [warm_up] if warm_up > TOO_SLOW_S else _seconds(product, device, CALLS)
        except (RuntimeError, NotImplementedError, ValueError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            return best or {"reason": f"torch cannot multiply {kind} here: {reason}"}
        rates = [2 * n**3 / s for s in seconds]
        if not best or max(rates) > max(best["samples"]):
            best = {"samples": rates, "n": n}
        if min(seconds) > GROW_UNTIL_S:
            break
        n *= 2
    return best


def _product(kind: str, n: int, device: torch.device) -> Callable[[], torch.Tensor]:
    import torch

    if kind == "int8":
        a, b = (torch.randint(-8, 8, (n, n), dtype=torch.int8, device=device) for _ in range(2))
        return lambda: torch._int_mm(a, b)
    dtypes = {"fp64": torch.float64, "bf16": torch.bfloat16, "fp16": torch.float16}
    x, y = (torch.randn(n, n, device=device).to(dtypes.get(kind, torch.float32)) for _ in range(2))
    return lambda: x @ y


def _copy(device: torch.device) -> list[float]:
    import torch

    size = COPY_BYTES.get(device.type, 1 << 28)
    source = torch.ones(size // 4, device=device)
    target = torch.empty_like(source)
    _seconds(lambda: target.copy_(source), device, 2)
    return [2 * size / s for s in _seconds(lambda: target.copy_(source), device, CALLS)]


def _launch(device: torch.device) -> list[float]:
    import torch

    a = torch.ones(1, device=device)
    _seconds(lambda: a + a, device, 100)
    return _seconds(lambda: a + a, device, 200)


def _seconds(call: Callable[[], Any], device: torch.device, calls: int) -> list[float]:
    samples = []
    devices.synchronize(device)
    for _ in range(calls):
        before = time.perf_counter()
        call()
        devices.synchronize(device)
        samples.append(time.perf_counter() - before)
    return samples


def world_size() -> int:
    """Number of processes that ``torchrun`` started; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def all_reduce(device: torch.device) -> tuple[list[float], int] | None:
    """Bus bandwidth of all-reduce among the processes of torchrun, in bytes/s, and the largest message in bytes.

    Bus bandwidth is 2 (n - 1) / n times message size over time (NCCL tests, PERFORMANCE.md): what each link carries
    one way in a ring. Every process must call it; only rank 0 gets the result.
    """
    import torch
    import torch.distributed as dist

    if device.type == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        size = 1 << 26
        message = torch.ones(size // 4, device=device)
        seconds = []
        for _ in range(CALLS + 2):
            dist.barrier()
            before = time.perf_counter()
            dist.all_reduce(message)
            devices.synchronize(device)
            seconds.append(time.perf_counter() - before)
        n = dist.get_world_size()
        rank = dist.get_rank()
    finally:
        dist.destroy_process_group()
    rates = [2 * (n - 1) / n * size / s for s in seconds[2:]]
    return (rates, size) if rank == 0 else None
