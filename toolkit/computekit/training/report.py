"""What every training step puts into its record."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from .. import loading

if TYPE_CHECKING:
    import torch
    from torch import nn

    from ..datasets import Data
    from ..evaluation import Evaluation
    from ..steps import StepRun
    from .loop import FitResult

_PARTS = ("data", "forward", "backward", "communication", "optimizer", "validation", "checkpoint")


def tested(
    module: nn.Module, data: Data, result: FitResult, device: torch.device, *, name: str = "the model"
) -> Evaluation | str:
    """How good a trained module is on the test split, or why that is not known.

    Whatever goes wrong here, Ctrl-C included, costs the metric and not the training, which may have taken days. The
    batches are as large as in training, which the device is known to hold.
    """
    from ..evaluation import evaluate

    try:
        return evaluate(module, data.test, data.task, device, result.recipe.batch_size or 1, name=name)
    except KeyboardInterrupt:
        return "interrupted while evaluating on the test split"
    except Exception as error:
        return f"evaluating on the test split failed: {loading.describe(error)}"


def report(run: StepRun, module: nn.Module, data: Data, result: FitResult, test: Evaluation | str) -> None:
    """Record a finished training: the metric on the test split, or why it is not known (see `tested`), the compute
    spent, the speed, the recipe and the curve."""
    run.spent_training(result.train_flops)
    if result.uncounted:
        run.note(f"train_flops leaves out operators without a FLOP formula: {', '.join(result.uncounted)}")
    run.put("parameters", sum(parameter.numel() for parameter in module.parameters()))
    metric = result.validation.metric
    if isinstance(test, str):
        run.unknown(metric, test)
    else:
        run.put(metric, **test.quantity())
    run.put(f"validation_{metric}", **result.validation.quantity())
    run.put("best_epoch", result.best_epoch)
    _put_speed(run, data, result)
    run.details["recipe"] = dataclasses.asdict(result.recipe)
    run.details["history"] = result.history
    run.details["data"] = data.describe()


def _put_speed(run: StepRun, data: Data, result: FitResult) -> None:
    if result.samples_per_s is None:
        run.unknown("train_samples_per_s", "fewer than two steps were taken in this process", "1/s")
    else:
        method = "without the first step, validation and checkpoints"
        run.put("train_samples_per_s", result.samples_per_s, "1/s", how="measured", method=method)
        if data.task == "language-modeling":
            tokens = result.samples_per_s * data.sample_shape[0]
            run.put("train_tokens_per_s", tokens, "1/s", how="measured", method=method)
    if result.peak_memory_bytes is None:
        run.unknown("train_peak_memory_bytes", "this system does not tell the peak of a process", "B")
    else:
        allocated = run.device.type == "cuda"
        method = (
            "allocated by torch" if allocated else "resident set of the process, with what its allocator holds back"
        )
        run.put("train_peak_memory_bytes", result.peak_memory_bytes, "B", how="measured", method=method)
    if result.energy_j is None:
        run.unknown("train_energy_j", result.energy_reason, "J")
    else:
        whole = "counter of the whole device, from the first step to the last validation"
        method = whole if result.ranks == 1 else f"{whole}; this process's device only"
        run.put("train_energy_j", result.energy_j, "J", how="measured", method=method)
    run.put("train_total_s", result.total_s, "s", how="measured")
    run.put("train_first_step_s", result.first_step_s, "s", how="measured")
    if result.exact_seconds:
        for part in _PARTS:
            if part in result.seconds:
                run.put(f"train_{part}_s", result.seconds[part], "s", how="measured")
        if result.ranks > 1 and "communication" not in result.seconds:
            run.unknown("train_communication_s", "it overlaps with computing, or waits on the device's queue", "s")
        run.put("train_other_s", result.total_s - sum(result.seconds.values()), "s", how="measured")


def utilization(run: StepRun, result: FitResult, peak_flops: float) -> None:
    """Record MFU and HFU: the model's, and all computed, FLOPs per second as a share of ``ranks * peak_flops``.

    Chowdhery et al. 2022 (PaLM, arXiv:2204.02311), appendix B; here attention counts as if it were not causal.
    """
    if result.samples_per_s is None:
        for key in ("mfu", "hfu"):
            run.unknown(key, "fewer than two steps were taken in this process")
        return
    for key, flops in (("mfu", result.train_flops), ("hfu", result.hardware_flops)):
        rate = flops / result.samples * result.samples_per_s
        method = f"{rate:.4g} FLOP/s of {result.ranks} x {peak_flops:.4g} FLOP/s"
        run.put(key, rate / (result.ranks * peak_flops), how="measured", method=method)
