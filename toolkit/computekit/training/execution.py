"""How a training run is carried out on the machine, which is no part of the recipe, and the options that say it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click


@dataclass(frozen=True)
class Execution:
    """How to carry out a `Recipe`.

    ``data_workers`` threads make batches ready while others are trained on; with 0, a step waits for its own.
    Each step's samples are taken in ``accumulate`` parts, one after the other, which takes less memory. With
    ``recompute``, repeated blocks forget their activations and compute them again in the backward pass. ``compile``
    runs the module through ``torch.compile``. With ``checkpoint``, training leaves a checkpoint there every
    ``checkpoint_every`` steps (None: every epoch), goes on from it if it exists, and removes it at the end. With
    ``trace``, a few steps are profiled into that file.
    """

    data_workers: int = 0
    accumulate: int = 1
    recompute: bool = False
    compile: bool = False
    checkpoint: Path | None = None
    checkpoint_every: int | None = None
    trace: Path | None = None


def execution_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add options that become an `Execution` to a command, whose function gets ``execution`` and ``parallel``.

    ``execution`` is a function from the path of the output to an `Execution`, as checkpoint and trace lie beside it.
    """

    @functools.wraps(function)
    def command(
        *args: Any, data_workers: int, accumulate: int, recompute: bool, compile: bool, resume: bool,
        checkpoint_every: int | None, profile: bool, **kwargs: Any,
    ) -> Any:  # fmt: skip
        if checkpoint_every and not resume:
            raise click.UsageError("--checkpoint-every says how often --resume keeps a checkpoint; give both")

        def execution(output: Path) -> Execution:
            return Execution(
                data_workers,
                accumulate,
                recompute,
                compile,
                output.with_name(output.name + ".checkpoint") if resume else None,
                checkpoint_every,
                output.with_name(output.name + ".trace.json") if profile else None,
            )

        return function(*args, execution=execution, **kwargs)

    decorated: Callable[..., Any] = command
    for option in reversed(_OPTIONS):
        decorated = option(decorated)
    return decorated


_OPTIONS = [
    click.option("--data-workers", type=click.IntRange(0), default=0, show_default=True,
                 help="Threads that make the next batches ready while one is trained on."),
    click.option("--accumulate", type=click.IntRange(1), default=1, show_default=True,
                 help="Parts in which a step's samples are taken one after the other, to save memory."),
    click.option("--recompute", is_flag=True,
                 help="Compute each block's activations again in the backward pass, to save memory."),
    click.option("--compile", is_flag=True, help="Run the model through torch.compile."),
    click.option("--parallel", type=click.Choice(["none", "ddp", "fsdp"]), default="none", show_default=True,
                 help="Share each step's samples among the processes that torchrun started; fsdp shards the weights."),
    click.option("--resume", is_flag=True,
                 help="Keep a checkpoint beside the output, and go on from it after a run that was killed."),
    click.option("--checkpoint-every", type=click.IntRange(1), metavar="STEPS",
                 help="With --resume: steps between checkpoints.  [default: every epoch]"),
    click.option("--profile", is_flag=True, 
                 help="Trace a few steps into OUTPUT.trace.json and show what took longest."),
]  # fmt: skip
