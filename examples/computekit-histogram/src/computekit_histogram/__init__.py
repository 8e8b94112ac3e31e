"""``computekit histogram``: how the weights of a model are distributed, as a picture.

A plugin with a dependency of its own (matplotlib), which is imported only when the command runs.
"""

from __future__ import annotations

from pathlib import Path

import click

import computekit
from computekit import files, hookspecs, implements, options

COMPUTEKIT_API = 1


@click.command()
@options.model
@click.option("--bins", type=click.IntRange(min=2), default=101, show_default=True, help="Number of bars.")
@click.option("--output", "-o", type=click.Path(path_type=Path), help="Where to write it.  [default: MODEL.svg]")
@options.trust_pickle
@options.common
def histogram(model: Path, bins: int, output: Path | None, trust_pickle: bool) -> None:
    """Draw how the weights of MODEL are distributed, in units of each tensor's standard deviation.

    \b
    Example:
      computekit histogram model.pt -o weights.svg
    """
    target = output or model.with_suffix(".svg")
    files.check_writable(target)
    import torch
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    from computekit.models import open_model

    source = open_model(model, trust_pickle=trust_pickle)
    counts, used = torch.zeros(bins), 0
    for info in source.tensors.values():
        if info.dtype.is_floating_point and len(info.shape) >= 2:
            weight = source.load(info.name).float()
            counts += torch.histc(weight / weight.std().clamp(min=1e-12), bins, min=-4, max=4)
            used += 1
    if not used:
        raise computekit.FileProblem(model, "has no weight matrix", "give a model with one")
    figure = Figure(figsize=(6, 3), layout="constrained")
    axes = figure.subplots()
    axes.bar(torch.linspace(-4, 4, bins).tolist(), (counts / counts.sum()).tolist(), width=8 / bins)
    axes.set(xlabel="weight / standard deviation of its tensor", ylabel="share", title=f"{model.name}: {used} tensors")
    # without a date and with fixed ids, equal models make equal pictures
    with files.atomic(target) as temporary, rc_context({"svg.hashsalt": "computekit"}):
        figure.savefig(temporary, format=target.suffix.removeprefix(".") or "svg", metadata={"Date": None})
    click.echo(f"{target}: {used} tensors, {int(counts.sum())} weights within 4 standard deviations")


@implements(hookspecs.computekit_commands)
def commands() -> list[computekit.Command]:
    return [computekit.Command(histogram)]
