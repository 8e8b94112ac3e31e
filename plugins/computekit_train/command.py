"""``computekit train``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

import computekit
from computekit import options, training

from .peak import PeakRate


@click.command()
@options.arch(required=True)
@options.data(required=True)
@training.recipe_options()
@training.execution_options
@click.option("--peak", type=PeakRate(), help="Peak rate for MFU and HFU: FLOP/s, or the name of a device.")
@options.step
def train(
    run: computekit.StepRun,
    arch: str,
    arch_args: dict[str, Any] | None,
    data: str,
    recipe: training.Recipe,
    execution: Callable[[Path], training.Execution],
    parallel: str,
    peak: float | str | None,
) -> None:
    """Train a model on a data set and keep the weights of the best epoch. The epoch is chosen on the validation
    split; the accuracy (or, for text, the perplexity) that is reported is of the test split, on which no choice is
    made.

    \b
    Example:
      computekit train --arch resnet --data digits -o model.pt
      computekit train --arch gpt --data mytext.txt --epochs 2 -o gpt.pt
      computekit train --arch mymodel:build --arch-args width=64 --data mydata.npz -o mine.pt
      torchrun --nproc-per-node 2 -m computekit train --parallel ddp --arch gpt --data pydoc -o gpt.pt
    """
    from computekit import models, zoo
    from computekit.models.formats import check_saved_name

    from .peak import peak_flops

    rate = peak_flops(peak, recipe.precision) if peak is not None else None
    dataset = computekit.load_data(data)
    target = run.output(f"{arch.rpartition(':')[2]}-{dataset.name.partition('.')[0].replace(':', '-')}.pt")
    check_saved_name(target)
    how = execution(target)
    with training.joined(parallel, run.device) as (ranks, device):
        run.quiet = run.quiet or not ranks.first
        reference = zoo.for_data(arch, arch_args, dataset)
        module = models.build(reference)
        name = f"architecture {arch!r}"
        try:
            result = training.fit(
                module, dataset, recipe, device=device, seed=run.seed, execution=how, ranks=ranks,
                progress=run.progress, name=name,
            )  # fmt: skip
        except KeyboardInterrupt:
            if how.checkpoint and how.checkpoint.exists():
                run.say(f"{how.checkpoint} is kept: the same command goes on from there")
            raise
    if not ranks.first:  # the first rank has the whole model and writes it
        raise click.exceptions.Exit(0)
    with run.writing(target) as temporary:
        computekit.save_module(module, temporary, reference, data=data)
    if how.checkpoint:
        how.checkpoint.unlink(missing_ok=True)
    training.report(run, module, dataset, result, training.tested(module, dataset, result, device, name=name))
    run.put("file_bytes", target.stat().st_size, "B")
    if rate is not None:
        training.utilization(run, result, rate)
    if how.trace:
        run.show(result.trace_table or f"no trace: fewer than {training.TRACED_STEPS} steps were taken")
