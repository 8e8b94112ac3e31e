"""Quantization-aware training: a few epochs in which the model computes with rounded weights and inputs.

Rounding has a derivative of 0 almost everywhere; the backward pass takes it for the identity (the straight-through
estimator, Bengio et al. 2013, arXiv:1308.3432). The float weights keep what each step moves; each forward pass rounds
them as the file will (Jacob et al. 2018, arXiv:1712.05877).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import computekit
from computekit import ComputekitError, options

if TYPE_CHECKING:
    import torch
    from torch import nn

    from computekit.models import ModelFile, TensorInfo

    from .flow import Job
    from .plan import Decision
    from .workbench import Workbench


_LR = 3e-4


@dataclass(frozen=True)
class Tuning:
    """How long to train with rounded weights (0: not at all), and the peak learning rate."""

    epochs: int
    lr: float


def _tuning(qat_epochs: int, qat_lr: float | None) -> Tuning:
    if qat_lr is not None and not qat_epochs:
        raise click.UsageError("--qat-lr belongs to --qat-epochs N: without it nothing is trained")
    return Tuning(qat_epochs, qat_lr or _LR)


tuning_options = options.gathered(
    "tuning",
    _tuning,
    click.option("--qat-epochs", type=click.IntRange(min=0), default=0, metavar="N",
                 help="Train for N epochs with rounded weights and activations before writing (quantization-aware "
                      "training). Needs --data."),
    click.option("--qat-lr", type=options.Number(above=0),
                 help="Peak learning rate of --qat-epochs.  [default: 0.0003]"),
    section="Training",
)  # fmt: skip
"""Options that become one argument ``tuning``."""


def tuned(run: computekit.StepRun, job: Job, source: ModelFile, decisions: list[Decision], target: Path) -> ModelFile:
    """A float model file of the same kind at ``target``, trained so that it bears ``decisions``.

    The record gets the metric of the original, of the original quantized, and what the training was.

    Raises:
        ComputekitError: there is no code to train, or it does not fit the data.
    """
    from computekit import evaluation, training
    from computekit.models import compressed, open_model
    from computekit.training.loop import TrainingFailed

    from . import samples
    from .workbench import Workbench

    if job.goal.data is None:
        raise click.UsageError("--qat-epochs needs --data to train on")
    data = computekit.load_data(job.goal.data, model=job.model, window=job.goal.window)
    module, arch = samples.load(job)
    bench = Workbench(module.to(run.device), source, decisions)
    whole = {decision: decision.treatment for decision in bench.quantized}
    with bench.treated(whole):
        untrained = evaluation.evaluate(module, data.test, data.task, run.device, job.goal.batch_size)
    recipe = training.Recipe(epochs=job.tuning.epochs, lr=job.tuning.lr, warmup=0.0)
    try:
        with rounding(bench):
            result = training.fit(
                module, data, recipe, device=run.device, seed=run.seed, progress=run.progress, name=arch.name
            )
    except (compressed.NonFinite, TrainingFailed) as error:
        raise ComputekitError(
            f"weights became NaN or infinite in training; try a smaller --qat-lr than {job.tuning.lr:g}"
        ) from error
    run.spent_training(result.train_flops)
    run.details["qat"] = {
        "epochs": job.tuning.epochs,
        "lr": job.tuning.lr,
        "best_epoch": result.best_epoch,
        "train_flops": result.train_flops,
        "history": result.history,
        "without": {"metric": untrained.metric, **untrained.quantity()},
    }
    run.show(f"{untrained.metric} on the test split of {data.name}, quantized without training: {untrained.value:.6g}")
    _write(module.to("cpu"), source, target)
    return open_model(target)


@contextmanager
def rounding(bench: Workbench) -> Iterator[None]:
    """The module in which quantized weights, and inputs of layers that compute in integers, are rounded."""
    from torch import nn
    from torch.nn.utils import parametrize

    rounder = _straight_through()
    added: list[tuple[nn.Module, str]] = []
    handles = []
    try:
        for decision in bench.quantized:
            treatment, name = decision.treatment, decision.info.name
            for owner, attribute in bench.places[name]:
                if isinstance(owner, nn.RNNBase):
                    raise ComputekitError(
                        f"--qat-epochs cannot train recurrent layers ({name}); --exclude leaves them out"
                    )
                parametrize.register_parametrization(owner, attribute, rounder(decision), unsafe=True)
                added.append((owner, attribute))
                if bench.in_integers(owner, treatment):
                    handles.append(owner.register_forward_pre_hook(_passing(bench.rounding(decision, treatment))))
        yield
    finally:
        for handle in handles:
            handle.remove()
        for owner, attribute in added:
            parametrize.remove_parametrizations(owner, attribute, leave_parametrized=False)


def _straight_through() -> Callable[[Decision], nn.Module]:
    """The class of modules that round a weight; made here, since importing this module must not import torch."""
    from torch import nn

    class Rounded(nn.Module):
        def __init__(self, decision: Decision) -> None:
            super().__init__()
            self.decision = decision

        def forward(self, weight: torch.Tensor) -> torch.Tensor:
            found = self.decision.treatment.round(weight.detach().cpu(), self.decision.info.name)
            return weight + (found.dequantize().to(weight) - weight).detach()

    return Rounded


def _passing(hook: Callable[..., Any]) -> Callable[..., Any]:
    """The same rounding of a layer's input, through which gradients pass."""

    def passing(layer: nn.Module, args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        rounded = hook(layer, (args[0].detach(),))[0]
        return (args[0] + (rounded - args[0]).detach(), *args[1:])

    return passing


def _write(module: nn.Module, source: ModelFile, target: Path) -> None:
    """The source's file with the module's values in it."""
    from computekit.models import rewrite
    from computekit.models.modules import match_names

    state = module.state_dict()
    names, _ = match_names(state, source)
    keys = {name: key for key, name in names.items()}

    def transform(info: TensorInfo, load: Callable[[], torch.Tensor]) -> list[tuple[str, torch.Tensor]] | None:
        key = keys.get(info.name)
        return None if key is None else [(info.name, state[key].to(info.dtype).contiguous())]

    rewrite(source, target, transform)
