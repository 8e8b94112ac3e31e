"""The benchmark plugin: latency, throughput, memory and energy of models, and a verdict on their difference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

import computekit
from computekit import options
from computekit.cli import DefaultGroup


class Sizes(click.ParamType[tuple[int, ...]]):
    """Whole numbers above zero, separated by commas: ``1,8,64``."""

    name = "sizes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        try:
            sizes = tuple(int(part) for part in str(value).split(",") if part.strip())
        except ValueError:
            sizes = ()
        if any(size < 1 for size in sizes) or (not sizes and str(value).strip()):
            self.fail(f"{value!r} is not a list of whole numbers above zero, such as 1,8,64", param, ctx)
        return sizes


@click.group(cls=DefaultGroup, default="models")
@options.common
def benchmark() -> None:
    """Measure models and say which is faster. Every verdict comes from trials in fresh processes.

    \b
    Example:
      computekit benchmark model.pt model-int8.pt
    """


@benchmark.command("models")
@options.models
@options.arch()
@options.data()
@click.option("--name", "names", multiple=True, help="Label of a model in tables; once per model, in their order.")
@click.option("--input-shape", type=Sizes(), help="Shape of one input sample, e.g. 3,224,224, when there is no --data.")
@options.batch_size(default=1)
@click.option(
    "--throughput-batches",
    type=Sizes(),
    default="64",
    show_default=True,
    help="Further batch sizes; the highest rate of all is the throughput.",
)
@click.option(
    "--margin",
    type=click.FloatRange(min=0, max=1, min_open=True),
    default=0.02,
    show_default=True,
    help="Differences below this fraction count as the same.",
)
@click.option(
    "--clock",
    type=click.Choice(["wall", "cpu", "device"]),
    default="wall",
    show_default=True,
    help="Wall clock, CPU time of all threads (for shared machines), or CUDA events.",
)
@click.option(
    "--time-budget",
    type=click.FloatRange(min=0, min_open=True),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="Add trials to the five needed ones until all pairs are resolved or this is spent.",
)
@click.option("--compile", "compile_", is_flag=True, help="Run every model through torch.compile.")
@options.trust_pickle
@options.step
def models(
    run: computekit.StepRun,
    models: tuple[Path, ...],
    arch: str | None,
    arch_args: dict[str, Any] | None,
    data: str | None,
    names: tuple[str, ...],
    input_shape: tuple[int, ...] | None,
    batch_size: int,
    throughput_batches: tuple[int, ...],
    margin: float,
    clock: str,
    time_budget: float,
    compile_: bool,
    trust_pickle: bool,
) -> None:
    """Measure one or several models and compare each with the first: faster, slower, the same, or unresolved.

    A verdict needs at least five trials. Each is a fresh process that creates the models in random order and times
    them in turns; the verdict comes from the interval of the ratio over trials and a margin of equivalence.

    \b
    Example:
      computekit benchmark models model.pt model-int8.pt --data digits
      computekit benchmark models a.pt b.pt --input-shape 3,224,224 --batch-size 8
    """
    from .compare import compare_models
    from .jobs import Job, Subject

    if clock == "device" and run.device.type != "cuda":
        raise computekit.ComputekitError(f"--clock device needs a CUDA device, not {run.device}; use wall or cpu")
    shared = Subject("", None, arch, dict(arch_args or {}), trust_pickle)
    compare_models(
        run, models, names,
        Job("trial", (shared,), data=data, input_shape=input_shape, compile=compile_),
        batch_size=batch_size, throughput_batches=throughput_batches,
        margin=margin, clock=clock, budget_s=time_budget,
    )  # fmt: skip


@computekit.hookimpl
def computekit_commands() -> list[computekit.Command]:
    return [computekit.Command(benchmark)]


@computekit.hookimpl
def computekit_steps() -> list[computekit.Step]:
    return [
        computekit.Step(
            "benchmark", models, takes="models", gives="record", exclusive=True, words=("benchmark", "models")
        )
    ]


@computekit.hookimpl
def computekit_columns() -> list[computekit.Column]:
    column = computekit.Column
    return [
        column("latency_s", "latency", "ms", 1e-3, better="lower", pareto=True, order=30),
        column("latency_p95_s", "latency p95", "ms", 1e-3, better="lower", order=31),
        column("latency_p90_s", "latency p90", "ms", 1e-3, better="lower", detail=True, order=32),
        column("latency_p99_s", "latency p99", "ms", 1e-3, better="lower", detail=True, order=33),
        column("cpu_time_s", "CPU time", "ms", 1e-3, better="lower", order=34),
        column("latency_ratio", "time ratio", "", better="lower", order=35),
        column("verdict", "verdict", order=36),
        column("throughput_per_s", "throughput", "1/s", better="higher", order=37),
        column("first_call_s", "first call", "ms", 1e-3, better="lower", detail=True, order=38),
        column("peak_memory_bytes", "peak memory", "MB", 1e6, better="lower", order=40),
        column("energy_j", "energy", "mJ", 1e-3, better="lower", order=41),
        column("accuracy", "accuracy", "%", 0.01, digits=4, better="higher", pareto=True, interval=True, order=20),
        column("accuracy_difference", "accuracy change", "points", 0.01, better="higher", interval=True, order=21),
        column("perplexity", "perplexity", "", digits=4, better="lower", pareto=True, interval=True, order=20),
        column("perplexity_ratio", "perplexity ratio", "", digits=4, better="lower", order=21),
    ]
