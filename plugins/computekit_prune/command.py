"""``computekit prune``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import computekit
from computekit import FileProblem, options, training

from . import criteria

if TYPE_CHECKING:
    import torch
    from torch import nn

    from computekit.datasets import Data
    from computekit.evaluation import Evaluation
    from computekit.inputs import Input


@click.command()
@options.model
@click.option(
    "--ratio",
    type=options.Number(above=0, below=1),
    help="Share of the channels and hidden neurons to remove.  [default: 0.5]",
)
@click.option(
    "--target-flops",
    type=options.Number(above=0, below=1),
    help="Instead of --ratio: share of the forward FLOPs to leave at most.",
)
@click.option(
    "--scope",
    type=click.Choice(["uniform", "global"]),
    default="uniform",
    show_default=True,
    help="uniform: the same share of each layer; global: the least important ones of all layers.",
)
@click.option(
    "--criterion",
    type=options.HostNames("computekit_prune_criteria", "name"),
    default="l2",
    show_default=True,
    help="Importance of a channel: l2, l1, taylor, random, or one that a plugin adds.",
)
@click.option(
    "--round-to",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Leave a multiple of this many channels: 8 or 16 suit most processors.",
)
@options.data(help="Data set to fine-tune and evaluate on. Without it, nothing is fine-tuned.")
@options.arch()
@options.input_shape
@options.trust_pickle
@training.recipe_options(lr=1e-3)
@options.step
def prune(
    run: computekit.StepRun,
    model: Path,
    ratio: float | None,
    target_flops: float | None,
    scope: str,
    criterion: str,
    round_to: int,
    data: str | None,
    arch: str | None,
    arch_args: dict[str, Any] | None,
    input_shape: tuple[Input, ...] | None,
    trust_pickle: bool,
    recipe: training.Recipe,
) -> None:
    """Remove the least important channels and hidden neurons of a model for good, then fine-tune what is left. Coupled
    layers (residual paths, q, k and v of an attention) shrink together; outputs and embeddings keep their size. The
    file opens as the smaller model everywhere in computekit.

    \b
    Example:
      computekit prune model.pt --ratio 0.5 --data digits
      computekit prune model.pt --ratio 0.3 --scope global --round-to 8 --data digits --epochs 5
      computekit prune mine.pt --arch mymodel:build --input-shape 3,224,224 -o smaller.pt
    """
    from computekit import models
    from computekit.models.examples import example_inputs
    from computekit.models.formats import check_saved_name

    from . import gradients
    from .pruning import Pruner
    from .removal import Settings

    if ratio is not None and target_flops is not None:
        raise click.UsageError("give --ratio or --target-flops, not both")
    chosen = criteria.find(criterion)
    target = run.output(model.with_name(f"{model.stem}-pruned.pt"))
    check_saved_name(target)
    reference = models.ArchRef(arch, arch_args or {}) if arch else None
    module, reference, metadata = computekit.load_module(model, reference, trust_pickle=trust_pickle)
    run.input(model)
    if metadata.get("compression"):
        raise FileProblem(model, "is quantized, and whole numbers cannot be fine-tuned", "prune first, then quantize")
    dataset = computekit.load_data(data, model=model) if data else None
    inputs = example_inputs(module, reference, data=dataset, shapes=input_shape, batch=2)
    device = run.device
    settings = Settings(ratio or 0.5, "global" if scope == "global" else "uniform", chosen, round_to)
    if chosen.needs_gradients:
        if dataset is None:
            raise click.UsageError(f"criterion {criterion} looks at gradients of the loss; give --data")
        gradients.accumulate(module, dataset, device)
    pruner = Pruner(module, reference, inputs)
    if target_flops is not None:
        pruned, run.details["ratio"] = pruner.prune_to_flops(settings, target_flops)
    else:
        pruned = pruner.prune(settings)
    _put_sizes(run, module, pruned.module, inputs)
    dtype = _stored_dtype(model, trust_pickle)
    run.details["layers"] = {
        name: {"before": before, "after": after} for name, (before, after) in pruned.layers.items()
    }
    run.details["kept"] = {kept.name: kept.reason for kept in pruned.kept}
    if dataset is None:
        run.note("Pruned without fine-tuning, because no --data was given: expect the accuracy to have collapsed.")
    else:
        _fine_tune(run, module, pruned.module, dataset, recipe, device, dtype)
    pruned.module.to(dtype)
    about = {key: value for key, value in metadata.items() if key not in ("format", "arch")} | {"pruned": True}
    if data is not None:
        about["data"] = data
    with run.writing(target) as temporary:
        computekit.save_module(pruned.module, temporary, reference, **about)
        if temporary.stat().st_size >= model.stat().st_size:
            raise FileProblem(target, "would be no smaller than the input", "give a larger --ratio")
    run.put("file_bytes", target.stat().st_size, "B")
    run.show(_table(pruned.layers, run.details["kept"]))


def _fine_tune(
    run: computekit.StepRun,
    original: nn.Module,
    pruned: nn.Module,
    data: Data,
    recipe: training.Recipe,
    device: torch.device,
    dtype: torch.dtype,
) -> None:
    """Evaluate, train and evaluate again, all on the test split; the best epoch is chosen on validation.

    The training runs in fp32; the last evaluation is of the weights as they will be stored, in ``dtype``.
    """
    from computekit import evaluation

    from . import batchnorm

    def test(module: nn.Module) -> Evaluation:
        return evaluation.evaluate(module, data.test, data.task, device)

    before = test(original.to(device))
    recalibrated = batchnorm.recalibrate(pruned.to(device), data, device)
    cut = test(pruned)
    result = training.fit(pruned, data, recipe, device=device, seed=run.seed, progress=run.progress)
    after = training.tested(pruned.to(dtype), data, result, device)
    training.report(run, pruned, data, result, after)
    run.put(f"{before.metric}_of_input", **before.quantity())
    run.put(f"{before.metric}_before_fine_tuning", **cut.quantity())
    if recalibrated:
        run.note(f"The statistics of {recalibrated} batch norms were taken anew on training data before fine-tuning.")
    if not isinstance(after, str):
        key, estimate = evaluation.difference(before, after)
        run.put(key, estimate.value, **estimate.about)


def _stored_dtype(model: Path, trust_pickle: bool) -> torch.dtype:
    """The type of the file's weights, so that a half-precision file stays one; float32 if they differ."""
    import torch

    tensors = computekit.open_model(model, trust_pickle=trust_pickle).tensors.values()
    found = {info.dtype for info in tensors if info.dtype.is_floating_point}
    return found.pop() if len(found) == 1 else torch.float32


def _put_sizes(run: computekit.StepRun, original: nn.Module, pruned: nn.Module, inputs: tuple[Any, ...]) -> None:
    """Parameters and forward FLOPs of one sample, and which share of them is left."""
    from computekit import flops

    one = tuple(value[:1] for value in inputs)
    parameters = [sum(p.numel() for p in module.parameters()) for module in (original, pruned)]
    counts = [flops.count(module, one) for module in (original, pruned)]
    run.put("parameters", parameters[1])
    run.put("parameters_left", parameters[1] / parameters[0], "1")
    run.put("forward_flops", counts[1].forward, "FLOP")
    run.put("forward_flops_left", counts[1].forward / counts[0].forward, "1")


def _table(layers: dict[str, tuple[int, int]], kept: dict[str, str]) -> str:
    from tabulate import tabulate

    rows = [(name, before, after, "") for name, (before, after) in layers.items()]
    return tabulate(
        [*rows, *((name, "", "", reason) for name, reason in kept.items())],
        headers=["channels of", "before", "after", "kept because"],
        tablefmt="plain",
    )
