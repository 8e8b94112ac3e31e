"""``computekit estimator plan``: the fastest or cheapest layout that fits, and the devices on which any does."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from computekit import ComputekitError, Row, StepRun, options

from .count import Finite, Putter, dimensions, subject_of, tell
from .errors import CannotPredict, ImpossibleLayout

if TYPE_CHECKING:
    from .hardware import Gpu
    from .plan import Choice, Plan
    from .transformer import Transformer


class Numbers(click.ParamType[tuple[int, ...]]):
    """``64,128,256``: several whole numbers."""

    name = "numbers"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        try:
            numbers = tuple(int(part) for part in str(value).split(","))
        except ValueError:
            numbers = ()
        if not numbers or min(numbers) < 1:
            self.fail(f"{value!r} is not a list of whole numbers such as 64,128", param, ctx)
        return numbers


@click.command()
@click.argument("model", type=options.InputPath("model"), required=False)
@options.arch()
@dimensions
@click.option("--device-name", metavar="NAME", help="Device of the catalog; without it, every GPU of the catalog.")
@click.option("--node-gpus", type=click.IntRange(min=1),
              help="Devices that fast links connect.  [default: 8; a rack of GB200, a pod of TPUs]")  # fmt: skip
@click.option("--network-gb-s", type=Finite(min=0, min_open=True), help="Network of a device, GB/s one way.")
@click.option("--num-gpus", type=Numbers(), required=True, help="Devices, or several counts to compare: 64,128,256.")
@click.option("--global-batch", type=click.IntRange(min=1), required=True, help="Sequences of one step.")
@click.option("--precision", type=click.Choice(["fp32", "bf16", "fp16", "fp8"]), default="bf16", show_default=True,
              help="Precision of the products.")  # fmt: skip
@click.option("--objective", type=click.Choice(["time", "gpu-hours"]), default="time", show_default=True,
              help="The fastest step, or the fewest GPU hours (the cheapest at one price an hour).")  # fmt: skip
@options.step
def plan(
    run: StepRun,
    model: Path | None,
    arch: str | None,
    arch_args: dict[str, Any] | None,
    device_name: str | None,
    node_gpus: int | None,
    network_gb_s: float | None,
    num_gpus: tuple[int, ...],
    global_batch: int,
    precision: str,
    objective: str,
    **asked: Any,
) -> None:
    """Find the fastest or cheapest parallel layout that fits in memory, with runners-up, or see which devices fit.

    Every layout that can run is tried. A runner-up within the error bar of published runs cannot be told from the best.

    \b
    Example:
      computekit estimator plan --layers 96 --hidden 12288 --device-name H100-SXM5-80GB --num-gpus 256,512 \\
        --global-batch 1536
      computekit estimator plan --config config.json --num-gpus 8 --global-batch 64
    """
    subject = subject_of(model, arch, arch_args, asked)
    if model is not None:
        run.input(model)
    if subject.dims is None:
        raise CannotPredict("layouts are modelled for transformers: give --config or --layers and --hidden")
    if device_name is None:
        _every_device(run, subject.dims, num_gpus[0], global_batch, precision, node_gpus)
        return
    from .parallel import find_device, require_gpu

    gpu = find_device(device_name, node_gpus, network_gb_s)
    require_gpu(gpu)
    _one_device(run, subject.dims, gpu, num_gpus, global_batch, precision, objective)


def _one_device(
    run: StepRun,
    model: Transformer,
    gpu: Gpu,
    counts: tuple[int, ...],
    global_batch: int,
    precision: str,
    objective: str,
) -> None:
    from . import accuracy
    from .plan import search

    gpu.peak(precision)
    plans = [search(model, gpu, count, global_batch, precision) for count in counts]
    choices = [choice for found in plans for choice in found.choices]
    if not choices:
        raise ImpossibleLayout(_why_none(gpu, counts, plans))

    def cost(choice: Choice) -> float:
        return choice.step_s * (choice.layout.num_gpus if objective == "gpu-hours" else 1)

    choices = sorted(choices, key=cost)[:8]
    bound = accuracy.training_time(model)
    tie = bound.high / bound.low  # beyond this the error bars of the two no longer overlap
    for rank, choice in enumerate(choices, 1):
        row = run.row(f"{rank}. {describe(choice)}")
        _put(Putter(row), model, choice, cost(choice) / cost(choices[0]), tie)
    tried, fitting = sum(found.tried for found in plans), sum(found.fitting for found in plans)
    run.details["layouts"] = {"tried": tried, "fitting": fitting}
    if unknown := accuracy.caveat(gpu.name):
        tell(run, unknown)
    run.note(f"times within a factor of {tie:.2f} lie within each other's error bars")
    table = _table(choices, [cost(choice) / cost(choices[0]) for choice in choices], tie)
    run.show(f"{table}\n{tried:,} layouts tried, {fitting:,} fit in memory")


def _put(put: Putter, model: Transformer, choice: Choice, ratio: float, tie: float) -> None:
    from . import accuracy

    layout = choice.layout
    put("num_gpus", int(layout.num_gpus), "")
    put("step_time_s", choice.step_s, "s", **accuracy.training_time(model).about(choice.step_s))
    put("tokens_per_s_per_gpu", layout.global_batch * model.seq / choice.step_s / layout.num_gpus, "token/s")
    put("peak_memory_bytes", choice.memory_bytes, "B", **accuracy.of("training memory").about(choice.memory_bytes))
    put("cost_ratio", ratio, "", "objective over that of the best")
    put("within_error", "yes" if ratio <= tie else "no", "", "cannot be told from the best")


def describe(choice: Choice) -> str:
    """``tp8 pp4 dp8 vp2 mb1 full zero1``: what a layout is, the ones left out."""
    layout = choice.layout
    sizes = [
        f"{name}{getattr(layout, name)}" for name in ("tp", "pp", "cp", "ep", "dp", "vp") if getattr(layout, name) > 1
    ]
    rest = [f"recompute-{layout.recompute}"] if layout.recompute != "none" else []
    rest += [layout.sharding] if layout.sharding != "none" else []
    return " ".join([*sizes, f"mb{layout.microbatch}", *rest])


def _table(choices: list[Choice], ratios: list[float], tie: float) -> str:
    from tabulate import tabulate

    rows = [
        (i, c.layout.num_gpus, describe(c), f"{c.step_s:.4g}", f"{c.memory_bytes / 1e9:.1f}", f"{100 * (r - 1):+.1f}%",
         "best" if i == 1 else "within the error" if r <= tie else "slower")
        for i, (c, r) in enumerate(zip(choices, ratios, strict=True), 1)
    ]  # fmt: skip
    header = ["", "GPUs", "layout", "step s", "memory GB", "to the best", ""]
    return tabulate(rows, header, tablefmt="plain", disable_numparse=True)


def _why_none(gpu: Gpu, counts: tuple[int, ...], plans: list[Plan]) -> str:
    if not any(found.tried for found in plans):
        return (f"no layout divides {', '.join(map(str, counts))} devices, the heads and the global batch; "
                "take a global batch that the number of devices divides")  # fmt: skip
    smallest = min(found.smallest_bytes for found in plans)
    return (f"nothing fits: the smallest layout of {max(counts)} devices needs {smallest / 1e9:.1f} GB a device, "
            f"{gpu.name} has {gpu.memory_bytes / 1e9:.0f} GB; take more devices")  # fmt: skip


def _every_device(
    run: StepRun, model: Transformer, num_gpus: int, global_batch: int, precision: str, node_gpus: int | None
) -> None:
    """One row for each GPU of the catalog: its best layout, or why there is none."""
    from tabulate import tabulate

    from computekit.catalog import hardware as catalog

    from .hardware import from_catalog

    body = []
    for entry in sorted(catalog(), key=lambda row: row.name):
        if entry.kind != "gpu":
            continue
        row = run.row(entry.name)
        try:
            text = _fit(row, model, from_catalog(entry), num_gpus, global_batch, precision)
        except ComputekitError as error:
            Putter(row).unknown("step_time_s", "s", str(error))
            text = ("", "", str(error))
        body.append((entry.name, *text))
    header = ["device", "step s", "memory GB", f"best layout of {num_gpus}"]
    run.show(tabulate(body, header, tablefmt="plain", disable_numparse=True))


def _fit(
    row: Row, model: Transformer, gpu: Gpu, num_gpus: int, global_batch: int, precision: str
) -> tuple[str, str, str]:
    from .plan import search

    gpu.peak(precision)
    found = search(model, gpu, num_gpus, global_batch, precision, keep=1)
    if not found.choices:
        raise ImpossibleLayout(_why_none(gpu, (num_gpus,), [found]))
    best = found.choices[0]
    _put(Putter(row), model, best, 1.0, 1.0)
    return f"{best.step_s:.4g}", f"{best.memory_bytes / 1e9:.1f}", describe(best)
