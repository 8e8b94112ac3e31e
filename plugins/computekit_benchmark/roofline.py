"""Inside a measuring process: time, FLOPs and bytes of each group of operations (Williams et al. 2009).

Bytes are those of all inputs and outputs of an operation, as if nothing stayed in a cache; so an operation on small
tensors can lie above the memory roof, which then says that the cache served it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from computekit import devices
from computekit.evaluation import floating_dtype
from computekit.flops import formulas

from . import compiling
from .jobs import Job
from .loading import Loaded, blaming, caller, example_inputs, load, prepare

PASSES = 15
VARIANT_S = 0.5


class _Meter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up time, FLOPs and bytes by operation; ``seconds`` holds one number per pass."""

    def __init__(self, device: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.device = device
        self.groups: dict[str, dict[str, Any]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        devices.synchronize(self.device)
        before = time.perf_counter()
        out = func(*args, **(kwargs or {}))
        devices.synchronize(self.device)
        seconds = time.perf_counter() - before
        if func.is_view:
            return out
        name = func.overloadpacket.__name__
        group = self.groups.setdefault(name, {"calls": 0, "seconds": 0.0, "flops": 0, "bytes": 0, "unknown": False})
        done = formulas.contraction(name, args, out)
        if done is None:
            done = formulas.other(func, name, args, out)
        group["calls"] += 1
        group["seconds"] += seconds
        group["flops"] += done or 0
        group["bytes"] += sum(leaf.nbytes for leaf in tree_leaves((args, out)) if hasattr(leaf, "nbytes"))
        group["unknown"] |= done is None
        return out


def run(job: Job) -> dict[str, Any]:
    """Measure the job's only subject at batch size ``more["batch"]``.

    Returns ``dtype``, ``groups`` (by operation, of one pass: calls, seconds as the median of `PASSES` passes, flops,
    bytes, unknown if it has no FLOP formula) and ``variants``: seconds per call as loaded, in channels-last layout
    where there are 4-dimensional inputs, and compiled where the job asks for it.
    """
    import torch

    device = prepare(job)
    subject = job.subjects[0]
    model = load(subject, job)
    with blaming(subject.label, "a call for the roofline"):
        inputs = example_inputs(model, job, int(job.more["batch"]))
        passes = []
        with torch.no_grad():
            model.module(*inputs)
            for _ in range(PASSES):
                meter = _Meter(device)
                with meter:
                    model.module(*inputs)
                passes.append(meter.groups)
        groups = passes[-1]
        for name, group in groups.items():
            group["seconds"] = sorted(found[name]["seconds"] for found in passes)[PASSES // 2]
        return {
            "dtype": str(floating_dtype(model.module)).removeprefix("torch."),
            "groups": groups,
            "variants": _variants(model, inputs, job),
        }


def _variants(model: Loaded, inputs: tuple[Any, ...], job: Job) -> dict[str, float]:
    import torch

    seconds = {"eager": _median_s(caller(model.module, inputs), job)}
    if job.compile:
        compiling.allow(2)
        seconds["compiled"] = _median_s(caller(compiling.compiled(model.module), inputs), job)
    if any(isinstance(x, torch.Tensor) and x.dim() == 4 for x in inputs):
        last = torch.channels_last
        moved = tuple(x.to(memory_format=last) if isinstance(x, torch.Tensor) and x.dim() == 4 else x for x in inputs)
        model.module.to(memory_format=last)  # type: ignore[call-overload]
        seconds["channels-last (NHWC)"] = _median_s(caller(model.module, moved), job)
    return seconds


def _median_s(call: Callable[[], Any], job: Job) -> float:
    import torch

    device = torch.device(job.device)
    call()
    samples: list[float] = []
    until = time.perf_counter() + VARIANT_S
    while len(samples) < 3 or time.perf_counter() < until:
        devices.synchronize(device)
        before = time.perf_counter()
        call()
        devices.synchronize(device)
        samples.append(time.perf_counter() - before)
    return sorted(samples)[len(samples) // 2]
