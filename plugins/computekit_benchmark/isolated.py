"""Inside a measuring process that holds one model alone: its size, peak memory, energy, and whether it is sound."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from computekit import devices, energy, files
from computekit.evaluation import evaluate
from computekit.models.compressed_layers import count_parameters

from . import compiling, memory, samples
from .jobs import Job, Subject
from .loading import blaming, caller, example_inputs, load, prepare, tensors
from .timing import REMEDY, check_pace

if TYPE_CHECKING:
    import torch
    from torch import nn

REHEARSAL_BYTES = 1 << 30
"""Up to this size a model is loaded and called once before the count begins, so that library pages are not counted."""

LEAK_SPANS = 6
LEAK_CALLS = 20
LEAK_S = 0.6
"""Leaks are looked for in spans of up to so many calls, each about so long; not in models that take longer for one."""

OUTPUTS = 20
OUTPUTS_S = 0.2
"""Outputs are looked at in up to so many calls in so much time, and in two at least."""

ENERGY_S = 2.0
"""NVML and RAPL counters move every 1 to 100 ms, so shorter spans would be mostly rounding."""


def examine(job: Job) -> Iterator[dict[str, Any]]:
    """Load the job's only subject and call it at batch size ``more["batch"]``.

    A call may take ``more["longest_s"]`` seconds.

    Yields parameters, output_shape, other_shape (if a second call with the same inputs gives another), nonfinite (how
    many outputs are NaN or infinite), compile_s if the job compiles, peak_memory_bytes (or peak_memory_reason),
    grows_bytes_per_call, energy_j per sample (or energy_reason); then, with samples of a data set, quantity (of a
    record) and outcomes (per sample, see `Evaluation`), which may take long and go wrong without harm to the rest.
    """
    device = prepare(job)
    subject = job.subjects[0]
    batch = int(job.more["batch"])
    _rehearse(job, batch)
    memory.settle()
    before = memory.resident_bytes() if memory.can_reset_peak() else 0
    model = load(subject, job)
    result: dict[str, Any] = {"parameters": _parameters(model.module, subject)}
    with blaming(subject.label, f"a call with batch size {batch}"):
        module = compiling.compiled(model.module) if job.compile else model.module
        call = caller(module, example_inputs(model, job, batch))
        if job.compile:
            result["compile_s"], pace_s = _compile_s(call, device)
        if job.compile and device.type == "cpu":
            result["peak_memory_reason"] = "the compiler in the same process needs more than the model"
        else:
            memory.settle()
            peak, pace_s = _peak(call, device, before)
            result |= peak
        check_pace(subject.label, pace_s, job.more["longest_s"], REMEDY)
        result |= _output(call)
        result |= _energy(call, device, batch)
    yield result
    if job.samples is not None:
        yield _quality(model.module, job, job.samples, device)


def _rehearse(job: Job, batch: int) -> None:
    """Load and call the model once, so that code and buffers of the libraries are not counted as the model's."""
    subject = job.subjects[0]
    if subject.path is not None and files.size_bytes(subject.path) > REHEARSAL_BYTES:
        return
    model = load(subject, job)
    with blaming(subject.label, f"a call with batch size {batch}"):
        caller(model.module, example_inputs(model, job, batch))()


def _compile_s(call: Callable[[], Any], device: torch.device) -> tuple[float, float]:
    """What the first call takes longer than the second, and the seconds of the second."""
    stamps = [time.perf_counter()]
    for _ in range(2):
        call()
        devices.synchronize(device)
        stamps.append(time.perf_counter())
    second = stamps[2] - stamps[1]
    return (stamps[1] - stamps[0]) - second, second


def _parameters(module: nn.Module, subject: Subject) -> int:
    """Values in the weights that ``module`` runs; a program holds them out of sight, so its model file is asked."""
    from computekit.models import open_model, roles
    from computekit.models.float_view import FloatView

    found = count_parameters(module)
    if found or subject.path is None:
        return found
    return roles.count_parameters(FloatView(open_model(subject.path, trust_pickle=subject.trust_pickle)))


def _peak(call: Callable[[], Any], device: torch.device, before: int) -> tuple[dict[str, Any], float]:
    """Peak of weights, inputs and one call's activations, above what the process held before the model came; and the
    seconds of that call."""
    import torch

    if device.type == "cuda":
        call()
        devices.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
    resettable = memory.can_reset_peak() and device.type == "cpu"
    if resettable:
        memory.reset_peak()
    began = time.perf_counter()
    call()
    devices.synchronize(device)
    pace_s = time.perf_counter() - began
    if device.type == "cuda":
        return {"peak_memory_bytes": torch.cuda.max_memory_allocated(device)}, pace_s
    if not resettable:
        return {"peak_memory_reason": f"this system keeps no resettable peak for {device.type}"}, pace_s
    peak = memory.peak_bytes() - before
    calls = min(LEAK_CALLS, int(LEAK_S / pace_s))
    return {"peak_memory_bytes": peak} | ({"grows_bytes_per_call": _growth(call, calls)} if calls else {}), pace_s


def _growth(call: Callable[[], Any], calls: int) -> float:
    """Bytes by which the process grows with each call: the least growth of `LEAK_SPANS` spans of ``calls`` calls.

    A leak grows in every span; an allocator that settles, or a cache that fills, grows in some.
    """
    held = [memory.resident_bytes()]
    for _ in range(LEAK_SPANS):
        for _ in range(calls):
            call()
        held.append(memory.resident_bytes())
    return max(0.0, min(after - before for before, after in itertools.pairwise(held)) / calls)


def _output(call: Callable[[], Any]) -> dict[str, Any]:
    """What is odd about the outputs of several calls with the same inputs."""
    import torch

    shapes: list[list[int] | None] = []
    bad = 0
    until = time.perf_counter() + OUTPUTS_S
    while len(shapes) < 2 or (len(shapes) < OUTPUTS and time.perf_counter() < until):
        found = list(tensors(call()))
        shapes.append(list(found[0].shape) if found else None)
        bad = max(bad, sum(int((~torch.isfinite(tensor)).sum()) for tensor in found if _may_be_nan(tensor)))
    other = [shape for shape in shapes if shape != shapes[0]]
    return {"output_shape": shapes[0], "nonfinite": bad} | ({"other_shape": other[0]} if other else {})


def _may_be_nan(tensor: torch.Tensor) -> bool:
    return (tensor.is_floating_point() or tensor.is_complex()) and tensor.dtype.itemsize > 1  # fp8 has no isfinite


def _energy(call: Callable[[], Any], device: torch.device, batch: int) -> dict[str, Any]:
    try:
        read = energy.counter(device.type, device.index or 0)
    except energy.NoCounter as reason:
        return {"energy_reason": str(reason)}
    devices.synchronize(device)
    began, until, calls = read(), time.perf_counter() + ENERGY_S, 0
    while time.perf_counter() < until:
        call()
        devices.synchronize(device)
        calls += 1
    return {"energy_j": (read() - began) / (calls * batch), "energy_calls": calls}


def _quality(module: nn.Module, job: Job, path: str, device: torch.device) -> dict[str, Any]:
    """Accuracy or perplexity on the test split in ``path``."""
    devices.make_repeatable(job.seed, job.threads)
    test = samples.load(path)
    label = job.subjects[0].label
    with blaming(label, "evaluating on the test split"):
        found = evaluate(module, test.split, test.task, device, name=label)
    return {"quantity": found.quantity(), "outcomes": found.outcomes.tolist()}
