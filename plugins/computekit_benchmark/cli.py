"""The command line of ``computekit benchmark``. Heavy imports live inside the commands."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

import computekit
from computekit import options
from computekit.cli import DefaultGroup
from computekit.inputs import Input

clock = click.option(
    "--clock", type=click.Choice(["wall", "cpu", "device"]), default="wall", show_default=True,
    help="Wall clock, CPU time of all threads (for shared machines), or CUDA events.",
)  # fmt: skip


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
@options.input_shape
@options.batch_size(default=1)
@click.option(
    "--throughput-batches",
    type=options.Sizes(),
    default="64",
    show_default=True,
    help="Further batch sizes; the highest rate of all is the throughput.",
)
@click.option(
    "--margin",
    type=options.Number(above=0, at_most=1),
    default=0.02,
    show_default=True,
    help="Differences below this fraction count as the same.",
)
@clock
@click.option(
    "--time-budget",
    type=options.Number(above=0),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="Add trials to the five needed ones until all pairs are resolved or this is spent.",
)
@click.option("--compile", "compile_", is_flag=True, help="Run every model through torch.compile.")
@click.option("--numerics", is_flag=True, help="Also run in bf16, fp16 and fp8: error by layer, and what overflows.")
@click.option("--roofline", is_flag=True, help="Also place each model's operations under the device's ceilings.")
@click.option(
    "--ceilings", metavar="FILE", help="Device record for --roofline (benchmark device).  [default: measure now]"
)
@options.trust_pickle
@options.step
def models(
    run: computekit.StepRun,
    models: tuple[Path, ...],
    arch: str | None,
    arch_args: dict[str, Any] | None,
    data: str | None,
    names: tuple[str, ...],
    input_shape: tuple[Input, ...] | None,
    batch_size: int,
    throughput_batches: tuple[int, ...],
    margin: float,
    clock: str,
    time_budget: float,
    compile_: bool,
    numerics: bool,
    roofline: bool,
    ceilings: str | None,
    trust_pickle: bool,
) -> int:
    """Measure one or several models and compare each with the first: faster, slower, the same, or unresolved.

    A verdict needs at least five trials. Each is a fresh process that creates the models in random order and times
    them in turns; the verdict comes from the interval of the ratio over trials and a margin of equivalence.

    \b
    Example:
      computekit benchmark models model.pt model-int8.pt --data digits
      computekit benchmark models a.pt b.pt --input-shape 3,224,224 --batch-size 8
      computekit benchmark models a.pt --numerics --roofline -o a.json
    """
    from computekit import catalog

    from .campaign import INTERRUPTION
    from .compare import Asked, compare_models
    from .jobs import INTERRUPTED, Job, Subject

    if clock == "device" and run.device.type != "cuda":
        raise computekit.ComputekitError(f"--clock device needs a CUDA device, not {run.device}; use wall or cpu")
    roof = None if ceilings is None else catalog.find_hardware(ceilings)
    shared = Subject("", None, arch, dict(arch_args or {}), trust_pickle)
    asked = Asked(
        batch_size=batch_size, throughput_batches=throughput_batches, margin=margin, clock=clock,
        budget_s=time_budget, numerics=numerics, roofline=roofline, ceilings=roof,
    )  # fmt: skip
    job = Job("trial", (shared,), inputs=input_shape, compile=compile_)
    campaign = compare_models(run, models, names, data, job, asked)
    if campaign.ended is None:
        return 0
    return INTERRUPTED if campaign.ended == INTERRUPTION else 1


@benchmark.command("self-test")
@clock
@options.threads
@options.seed
@options.device
@click.option(
    "--time-budget",
    type=options.Number(above=0),
    default=240.0,
    show_default=True,
    metavar="SECONDS",
    help="Start no further pair after this; one workload is always tested.",
)
@options.as_json
@options.common
@click.pass_context
def self_test(
    ctx: click.Context, clock: str, threads: int | None, seed: int, device: str, time_budget: float, as_json: bool
) -> None:
    """Test the trial rule on this machine: a model against itself, and against itself with 5 % more FLOPs.

    Prints how often the rule called the model different from itself (false verdicts) and how often it found the 5 %
    (power), for four workloads. On a busy machine pairs stay unresolved, which is no false verdict.

    \b
    Example:
      computekit benchmark self-test --time-budget 600
      computekit benchmark self-test --json --threads 1
    """
    from . import selftest

    quiet = bool(ctx.meta.get("computekit.quiet"))
    report = selftest.run(time_budget, clock=clock, device=device, threads=threads, seed=seed, quiet=quiet)
    click.echo(json.dumps(report, indent=2) if as_json else selftest.describe(report))


@benchmark.command("device")
@options.step
def device(run: computekit.StepRun) -> None:
    """Measure what this device really does: matrix products per data type, copying, the latency of a small call.

    The record can stand wherever a device's name is asked for, so that estimates and rooflines use measured rates.
    Under torchrun the bandwidth of all-reduce between the processes is measured too.

    \b
    Example:
      computekit benchmark device -o device.json
      torchrun --nproc-per-node 2 -m computekit benchmark device --device cpu -o device.json
    """
    from .device_record import measure_device

    if not measure_device(run):
        raise click.exceptions.Exit(0)  # a rank of torchrun that only took part: rank 0 keeps the record


@benchmark.command("scenario")
@options.model
@options.arch()
@options.data()
@options.input_shape
@click.option(
    "--scenario",
    type=options.HostNames("computekit_benchmark_scenarios", "name"),
    default="server",
    show_default=True,
    help="MLPerf's single-stream, offline or server, or one that a plugin adds.",
)
@click.option(
    "--scenario-args",
    type=options.Arguments(),
    default=None,
    help="Arguments of a plugin's scenario: key=value,key=value or a JSON object.",
)
@click.option(
    "--rate",
    type=options.Number(above=0),
    default=100.0,
    show_default=True,
    metavar="PER_SECOND",
    help="Server: mean rate of the Poisson arrivals. Offline with --loadgen: the rate to expect.",
)
@click.option(
    "--max-batch",
    type=click.IntRange(min=1),
    default=16,
    show_default=True,
    help="Largest batch that the server forms; the batch of offline.",
)
@click.option(
    "--max-delay",
    type=options.Number(at_least=0),
    default=0.002,
    show_default=True,
    metavar="SECONDS",
    help="Server: how long the first query of a batch waits for others.",
)
@click.option(
    "--latency-bound",
    type=options.Number(above=0),
    default=0.05,
    show_default=True,
    metavar="SECONDS",
    help="Server: answers within this count as good.",
)
@click.option(
    "--duration",
    type=options.Number(above=0),
    default=4.0,
    show_default=True,
    metavar="SECONDS",
    help="Length of each of the five trials.",
)
@click.option("--loadgen", is_flag=True, help="Let MLCommons' LoadGen drive it (the loadgen extra).")
@click.option("--compile", "compile_", is_flag=True, help="Run the model through torch.compile.")
@options.trust_pickle
@options.step
def scenario(
    run: computekit.StepRun,
    model: Path,
    arch: str | None,
    arch_args: dict[str, Any] | None,
    data: str | None,
    input_shape: tuple[Input, ...] | None,
    scenario: str,
    scenario_args: dict[str, Any] | None,
    rate: float,
    max_batch: int,
    max_delay: float,
    latency_bound: float,
    duration: float,
    loadgen: bool,
    compile_: bool,
    trust_pickle: bool,
) -> int:
    """Measure one model under a scenario: MLPerf's single-stream, offline or server, or one that a plugin adds.

    The server gets Poisson arrivals at --rate, forms batches of up to --max-batch from queries that wait at most
    --max-delay, and is judged by the 99th percentile of latency and by goodput: the rate of answers within the bound.

    \b
    Example:
      computekit benchmark scenario model.pt --rate 500 --max-batch 32 --latency-bound 0.02
      computekit benchmark scenario model.pt --scenario offline --max-batch 256
    """
    from . import scenarios
    from .jobs import Job, Subject
    from .loadgen import SCENARIOS
    from .scenario_record import run_scenario

    chosen = scenarios.find(scenario)
    scenarios.check_arguments(chosen, scenario_args or {})
    if loadgen and scenario not in SCENARIOS:
        raise click.UsageError(f"--loadgen drives {', '.join(SCENARIOS)}, not {scenario}")
    if loadgen and find_spec("mlperf_loadgen") is None:
        raise computekit.MissingExtra("mlcommons-loadgen", "loadgen", "--loadgen")
    subject = Subject(run.label or model.stem, str(model), arch, dict(arch_args or {}), trust_pickle)
    more = {
        "scenario": scenario, "arguments": scenario_args or {}, "rate_per_s": rate, "max_batch": max_batch,
        "max_delay_s": max_delay, "latency_bound_s": latency_bound, "duration_s": duration,
    }  # fmt: skip
    task = "loadgen" if loadgen else "scenario"
    job = Job(task, (subject,), inputs=input_shape, compile=compile_, more=more)
    return run_scenario(run, model, data, chosen, job)


@benchmark.command("generate")
@options.model
@options.arch()
@click.option(
    "--prompt",
    "prompts",
    type=options.Sizes(),
    default="64",
    show_default=True,
    help="Lengths of the prompt in tokens; the row of the record is about the first.",
)
@click.option("--new-tokens", type=click.IntRange(min=1), default=32, show_default=True, help="Tokens to generate.")
@click.option(
    "--kv-cache",
    type=click.Choice(["model", "int8"]),
    default="model",
    show_default=True,
    help="Type of the stored keys and values: the model's own, or 8-bit integers with a scale per token and head.",
)
@options.batch_size(default=1)
@options.trust_pickle
@options.step
def generate(
    run: computekit.StepRun,
    model: Path,
    arch: str | None,
    arch_args: dict[str, Any] | None,
    prompts: tuple[int, ...],
    new_tokens: int,
    kv_cache: str,
    batch_size: int,
    trust_pickle: bool,
) -> int:
    """Measure a language model: time to first token, time per output token, and tokens per second.

    With --kv-cache int8 also what the KV cache takes and what its rounding does to the next token, both against the
    cache in the model's own type.

    \b
    Example:
      computekit benchmark generate gpt.pt --prompt 16,64 --new-tokens 32
      computekit benchmark generate llama-folder --prompt 512 --kv-cache int8
      computekit benchmark generate llama-folder --prompt 512 --batch-size 8
    """
    from .generation_record import measure_generation
    from .jobs import Job, Subject

    if not prompts:
        raise click.UsageError("--prompt needs at least one length")
    subject = Subject(run.label or model.stem, str(model), arch, dict(arch_args or {}), trust_pickle)
    more = {"prompts": prompts, "new_tokens": new_tokens, "batch": batch_size, "kv_cache": kv_cache}
    return measure_generation(run, model, Job("generate", (subject,), more=more))
