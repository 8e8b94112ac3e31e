"""What each layer takes, treated and not: measured where it stands, while the model runs on real inputs."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from computekit import devices

if TYPE_CHECKING:
    import torch
    from torch import nn

    from .plan import Decision, Treatment
    from .workbench import Workbench

ROUNDS = 5
"""Times that a layer is called each way, in turn; the first round is not counted."""


Seconds = dict["Treatment | None", float]
"""Seconds of one forward call by treatment; None stands for the layer as it was."""


def layer_times(
    bench: Workbench, ladders: Mapping[Decision, Sequence[Treatment]], run_model: Callable[[nn.Module], Any]
) -> dict[Decision, Seconds]:
    """Time the layers of weights with each of their treatments in one forward pass, ``run_model(module)``.

    At each call of such a layer its own inputs are sent through it `ROUNDS` times, in turn as a float layer and with
    its treatments, so that a noisy moment hits all; the medians of all rounds but the first count. Weights of layers
    that never run are not in the result. A weight with several calls (tied, or in a loop) gets the sum over them.
    """
    found: dict[Decision, Seconds] = {}
    handles = []
    busy = False

    def watch(decision: Decision, treatments: Sequence[Treatment]) -> Callable[..., None]:
        def before(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            nonlocal busy
            if busy:
                return
            busy = True
            try:
                once = _time(bench, decision, treatments, lambda: layer.forward(*args, **kwargs))
            finally:
                busy = False
            so_far = found.setdefault(decision, dict.fromkeys(once, 0.0))
            for treatment, seconds in once.items():
                so_far[treatment] += seconds

        return before

    try:
        for decision, treatments in ladders.items():
            for owner, _ in bench.places[decision.info.name]:
                handles.append(owner.register_forward_pre_hook(watch(decision, treatments), with_kwargs=True))
        run_model(bench.module)
    finally:
        for handle in handles:
            handle.remove()
    return found


def _time(bench: Workbench, decision: Decision, treatments: Sequence[Treatment], call: Callable[[], Any]) -> Seconds:
    rounds: dict[Treatment | None, list[float]] = {None: [], **{treatment: [] for treatment in treatments}}
    with bench.swapping(decision, treatments) as swap:
        for _ in range(ROUNDS):
            for treatment, seconds in rounds.items():
                swap(treatment)
                seconds.append(_seconds(call, bench.device))
    return {treatment: statistics.median(seconds[1:]) for treatment, seconds in rounds.items()}


def _seconds(call: Callable[[], Any], device: torch.device) -> float:
    """Of one call: CPU time (of all threads) on the CPU, where others may be running too; elsewhere wall time."""
    clock = time.process_time if device.type == "cpu" else time.perf_counter
    devices.synchronize(device)
    started = clock()
    call()
    devices.synchronize(device)
    return clock() - started
