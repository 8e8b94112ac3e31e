"""``computekit estimator train``: time, memory, energy and GPU hours of a training run on named devices."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from computekit import StepRun, options

from .calibrate import calibration as calibration_option
from .calibrate import load
from .constants import CONSTANTS, Constants
from .count import Finite, Putter, counted, dimensions, subject_of, tell
from .errors import CannotPredict
from .parallel import device, find_device, layout_options, make_layout, require_gpu

if TYPE_CHECKING:
    from computekit.inputs import Input

    from .hardware import Gpu
    from .layout import Layout
    from .memory import Memory
    from .source import Subject
    from .time import StepTime
    from .transformer import Transformer


@click.command()
@click.argument("model", type=options.InputPath("model"), required=False)
@options.arch()
@dimensions
@options.input_shape
@options.trust_pickle
@device
@layout_options
@calibration_option
@click.option("--tokens", type=Finite(min=1), help="Tokens to train on, e.g. 300e9.")
@click.option("--samples", type=Finite(min=1), help="Samples (sequences, images) to train on.")
@click.option("--sample-bytes", type=Finite(min=0), help="Stored size of one sample, for the data stage.")
@click.option("--data-mb-s", type=Finite(min=0, min_open=True), help="Rate at which a node reads samples, MB/s.")
@options.step
def train(
    run: StepRun,
    model: Path | None,
    arch: str | None,
    arch_args: dict[str, Any] | None,
    input_shape: tuple[Input, ...] | None,
    trust_pickle: bool,
    device_name: str,
    node_gpus: int | None,
    network_gb_s: float | None,
    tokens: float | None,
    samples: float | None,
    sample_bytes: float | None,
    data_mb_s: float | None,
    calibration: Path | None,
    **asked: Any,
) -> None:
    """Estimate time, memory, energy and GPU hours of training on named devices, before anything runs.

    A transformer (dimensions, a Hugging Face config) gets the full model: products by shape, attention, recomputation,
    pipeline bubble, collectives by network level, memory by part. Any other module gets a roofline over its operators
    on one device. Intervals come from the errors on published runs, those of other modules from times measured on one
    core of a processor.

    \b
    Example:
      computekit estimator train --layers 96 --hidden 12288 --device-name A100-SXM4-80GB --num-gpus 1024 \\
        --tp 8 --pp 8 --global-batch 1536 --recompute full --tokens 300e9
      computekit estimator train model.pt --device-name T4 --microbatch 64 --precision fp32 --samples 1e6
    """
    if (sample_bytes is None) != (data_mb_s is None):
        raise click.UsageError("--sample-bytes and --data-mb-s belong together")
    subject = subject_of(model, arch, arch_args, asked, input_shape, trust_pickle)
    if model is not None:
        run.input(model)
    gpu = find_device(device_name, node_gpus, network_gb_s)
    put = Putter(run.row(run.label or subject.label, subject.sha256))
    data_s = (sample_bytes or 0.0) / ((data_mb_s or 1.0) * 1e6)
    if subject.dims is not None:
        require_gpu(gpu)
        layout = make_layout(subject.dims, gpu, asked)
        if samples is None and tokens is not None:
            samples = tokens / subject.dims.seq
        constants = load(run.input(calibration)) if calibration is not None else CONSTANTS
        _transformer(run, put, subject.dims, layout, gpu, samples, data_s, constants)
    else:
        if tokens is not None:
            raise click.UsageError("--tokens needs a transformer; give --samples")
        _generic(run, put, subject, gpu, asked, samples, data_s)


def _transformer(
    run: StepRun,
    put: Putter,
    model: Transformer,
    layout: Layout,
    gpu: Gpu,
    samples: float | None,
    data_s: float,
    constants: Constants,
) -> None:
    from . import accuracy, memory, time

    step = time.step(model, layout, gpu, constants)
    parts = memory.training(model, layout, gpu)
    nodes = max(layout.num_gpus / gpu.node_gpus, 1)
    seconds = _with_data(run, put, float(step.total), data_s * layout.global_batch / nodes)
    forward = model.forward_flops() * layout.global_batch
    peak = gpu.peak(layout.precision) * layout.num_gpus
    about = accuracy.training_time(model).about
    put("step_time_s", seconds, "s", **about(seconds))
    put("tokens_per_s_per_gpu", layout.global_batch * model.seq / seconds / layout.num_gpus, "token/s")
    put("throughput_per_s", layout.global_batch / seconds, "1/s")
    put("mfu", 3 * forward / seconds / peak, "", "model FLOPs (full attention, nothing recomputed) over the dense peak")
    put("hfu", layout.hardware_passes * forward / seconds / peak, "", "with what is recomputed")
    total = float(parts.total)
    put("peak_memory_bytes", total, "B", **accuracy.of("training memory").about(total))
    put("memory_fits", "yes" if total <= gpu.memory_bytes else "no", "", f"of {gpu.memory_bytes / 1e9:.0f} GB")
    if total > gpu.memory_bytes:
        tell(run, f"does not fit: {total / 1e9:.1f} GB needed, {gpu.name} has {gpu.memory_bytes / 1e9:.0f} GB; "
                 "shard more, recompute, or take a smaller microbatch")  # fmt: skip
    if samples is not None:
        steps = samples / layout.global_batch
        put("training_time_s", seconds * steps, "s", **about(seconds * steps))
        _whole(put, gpu, seconds * steps, int(layout.num_gpus), 3.0 * forward * steps)
    run.note(memory.NOT_MODELLED)
    if unknown := accuracy.caveat(gpu.name):
        tell(run, unknown)
    run.details["parts"] = {
        "step time, s": {name.replace("_", " "): float(value) for name, value in vars(step).items()},
        "memory of a rank, GB": {name: float(value) / 1e9 for name, value in vars(parts).items()},
    }
    run.show(f"{_parts_table(step, parts)}\n{memory.NOT_MODELLED}")


def _generic(
    run: StepRun, put: Putter, subject: Subject, gpu: Gpu, asked: dict[str, Any], samples: float | None, data_s: float
) -> None:
    from . import accuracy, generic

    if asked["num_gpus"] != 1:
        raise CannotPredict("only transformers are modelled on several devices; give dimensions or one device")
    if subject.module is None or subject.inputs is None:
        raise CannotPredict(subject.why_no_flops or "the model cannot be run")
    batch = asked["microbatch"]
    cost = counted(subject)
    for text in subject.notes():
        tell(run, text)
    passes = generic.passes(cost, gpu, asked["precision"], batch)
    size = subject.parameters or 0
    optimizer = 50.0 * size / gpu.memory_rate
    seconds = _with_data(run, put, passes.forward + passes.backward + optimizer, data_s * batch)
    about = accuracy.generic().about
    put("step_time_s", seconds, "s", **about(seconds))
    put("throughput_per_s", batch / seconds, "1/s")
    put("mfu", cost.total * batch / seconds / gpu.peak(asked["precision"]), "")
    put("memory_bound_share", passes.memory_bound, "", "of the forward pass")
    activations = cost.activation_bytes * batch * (1.0 if asked["precision"] in ("fp32", "tf32") else 0.5)
    put("peak_memory_bytes", 16.0 * size + activations, "B", "weights, gradients, Adam, every activation kept")
    if samples is not None:
        put("training_time_s", seconds * samples / batch, "s", **about(seconds * samples / batch))
        _whole(put, gpu, seconds * samples / batch, 1, float(cost.total) * samples)


def _with_data(run: StepRun, put: Putter, compute_s: float, data_s: float) -> float:
    """The step's time with its samples read meanwhile; says so when reading takes longer."""
    if data_s:
        put("data_time_s", data_s, "s", "reading one step's samples, overlapped with the step")
        if data_s > compute_s:
            tell(run, f"data-bound: reading takes {data_s:.3g} s, computing {compute_s:.3g} s a step")
    return max(compute_s, data_s)


def _whole(put: Putter, gpu: Gpu, seconds: float, gpus: int, flops: float) -> None:
    put("gpu_hours", seconds * gpus / 3600, "h")
    put("model_flops", flops, "FLOP", "forward and backward over all samples, nothing recomputed")
    if gpu.tdp_w is None:
        put.unknown("energy_j", "J", f"the catalog has no power of {gpu.name}")
    else:
        put(
            "energy_j", gpu.tdp_w * gpus * seconds, "J", "devices at their rated power all the time; hosts not included"
        )


def _parts_table(step: StepTime, parts: Memory) -> str:
    """Where time and memory go, side by side."""
    from tabulate import tabulate

    times = [
        (k.replace("_", " "), f"{float(v):.4g} s", f"{float(v) / float(step.total):.1%}") for k, v in vars(step).items()
    ]
    sizes = [(k, f"{float(v) / 1e9:.2f} GB", f"{float(v) / float(parts.total):.1%}") for k, v in vars(parts).items()]
    times.append(("total", f"{float(step.total):.4g} s", ""))
    sizes.append(("total", f"{float(parts.total) / 1e9:.2f} GB", ""))
    blank = ("", "", "")
    rows = [
        (*(times[i] if i < len(times) else blank), *(sizes[i] if i < len(sizes) else blank))
        for i in range(max(len(times), len(sizes)))
    ]
    header = ["step time", "", "", "memory of a rank", "", ""]
    return tabulate(rows, header, tablefmt="plain", disable_numparse=True,
                    colalign=("left", "right", "right", "left", "right", "right"))  # fmt: skip
