"""``computekit train``."""

from __future__ import annotations

from typing import Any

import click

import computekit
from computekit import options, training


@click.command()
@options.arch(required=True)
@options.data(required=True)
@training.recipe_options()
@options.step
def train(
    run: computekit.StepRun, arch: str, arch_args: dict[str, Any] | None, data: str, recipe: training.Recipe
) -> None:
    """Train a model on a data set and keep the weights of the best epoch. The epoch is chosen on the validation
    split; the accuracy (or, for text, the perplexity) that is reported is of the test split, on which no choice is
    made.

    \b
    Example:
      computekit train --arch resnet --data digits -o model.pt
      computekit train --arch gpt --data mytext.txt --epochs 2 -o gpt.pt
      computekit train --arch mymodel:build --arch-args width=64 --data mydata.npz -o mine.pt
    """
    from computekit import evaluation, models, zoo

    dataset = computekit.load_data(data)
    target = run.output(f"{arch.rpartition(':')[2]}-{dataset.name.partition('.')[0].replace(':', '-')}.pt")
    device = run.device
    reference = zoo.for_data(arch, arch_args, dataset)
    module = models.build(reference)
    name = f"architecture {arch!r}"
    result = training.fit(module, dataset, recipe, device=device, seed=run.seed, progress=run.progress, name=name)
    test = evaluation.evaluate(module, dataset.test, dataset.task, device, name=name)
    with run.writing(target) as temporary:
        computekit.save_module(module, temporary, reference, data=data)
    training.report(run, module, dataset, result, test)
    run.put("file_bytes", target.stat().st_size, "B")
