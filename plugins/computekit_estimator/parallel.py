"""Options that describe a parallel layout, shared by the commands that estimate training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from .count import Finite
from .errors import CannotPredict, ImpossibleLayout

if TYPE_CHECKING:
    from .hardware import Gpu
    from .layout import Layout
    from .transformer import Transformer

PRECISIONS = ("fp32", "tf32", "bf16", "fp16", "fp8")


def device(function: Callable[..., Any]) -> Callable[..., Any]:
    """``--device-name`` and what surrounds the device."""
    for decorate in (
        click.option("--network-gb-s", type=Finite(min=0, min_open=True),
                     help="Network of each device, GB/s one way.  [default: usual for the device's year]"),
        click.option("--node-gpus", type=click.IntRange(min=1),
                     help="Devices that fast links connect.  [default: 8; a rack of GB200, a pod of TPUs]"),
        click.option("--device-name", required=True, metavar="NAME", help="Device, e.g. H100-SXM5-80GB."),
    ):  # fmt: skip
        function = decorate(function)
    return function


def layout_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """``--tp --pp ...``: how a step is spread over devices."""
    count = click.IntRange(min=1)
    for decorate in (
        click.option("--attention", type=click.Choice(["fused", "unfused"]), default="fused", show_default=True,
                     help="Fused kernels never write the score matrix."),
        click.option("--no-overlap", is_flag=True, help="Communication waits for computation to end."),
        click.option("--compiled", is_flag=True, help="Element-wise chains are fused, as torch.compile does."),
        click.option("--expert-overlap", is_flag=True,
                     help="Tokens travel to their experts while another microbatch computes, as in DualPipe."),
        click.option("--sequence-parallel", is_flag=True, help="Shard norms and residuals over tensor parallelism."),
        click.option("--sharding", type=click.Choice(["none", "zero1", "zero2", "zero3", "fsdp"]), default="none",
                     show_default=True, help="What data parallelism shards; fsdp is zero3."),
        click.option("--recompute", type=click.Choice(["none", "selective", "operators", "layers", "full"]),
                     default="none", show_default=True, help="Activations computed again in the backward pass."),
        click.option("--precision", type=click.Choice(PRECISIONS), default="bf16", show_default=True,
                     help="Precision of the products."),
        click.option("--global-batch", type=count, help="Sequences of one step.  [default: one microbatch a rank]"),
        click.option("--microbatch", type=count, default=1, show_default=True, help="Sequences of one pass."),
        click.option("--vp", type=count, default=1, show_default=True, help="Interleaved chunks of a pipeline stage."),
        click.option("--ep", type=count, default=1, show_default=True, help="Expert parallelism."),
        click.option("--cp", type=count, default=1, show_default=True, help="Context parallelism."),
        click.option("--pp", type=count, default=1, show_default=True, help="Pipeline stages."),
        click.option("--tp", type=count, default=1, show_default=True, help="Tensor parallelism."),
        click.option("--num-gpus", type=count, default=1, show_default=True, help="Devices in all."),
    ):  # fmt: skip
        function = decorate(function)
    return function


def find_device(name: str, node_gpus: int | None, network_gb_s: float | None) -> Gpu:
    """The device with its node and network."""
    from . import hardware

    return hardware.find(name, node_gpus, network_gb_s * 1e9 if network_gb_s else None)


def require_gpu(gpu: Gpu) -> None:
    """Refuse what the kernel model does not cover: processors without a matrix unit and a memory of their own."""
    if gpu.kind not in ("gpu", "apu", "tpu", "npu", "soc-gpu"):
        raise CannotPredict(f"{gpu.name} is a {gpu.kind}; only accelerators are modelled")


def make_layout(model: Transformer, gpu: Gpu, asked: dict[str, Any]) -> Layout:
    """A checked layout from the options of `layout_options`, which are taken out of ``asked``.

    Raises:
        ImpossibleLayout: it cannot run; the message names the nearest one that can.
    """
    from .divisors import near
    from .layout import Layout, check

    gpus = asked.pop("num_gpus")
    sizes = {name: asked.pop(name) for name in ("tp", "pp", "cp", "ep", "vp", "microbatch")}
    ranks = sizes["tp"] * sizes["pp"] * sizes["cp"]
    if gpus % ranks:
        raise ImpossibleLayout(
            f"tp x pp x cp = {ranks} does not divide {gpus} devices; the nearest that does is {near(gpus, ranks)}"
        )
    dp = gpus // ranks
    sharding = asked.pop("sharding")
    layout = Layout(
        **sizes,
        dp=dp,
        global_batch=asked.pop("global_batch") or dp * sizes["microbatch"],
        precision=asked.pop("precision"),
        recompute=asked.pop("recompute"),
        sharding="zero3" if sharding == "fsdp" else sharding,
        sequence_parallel=asked.pop("sequence_parallel"),
        fused_attention=asked.pop("attention") == "fused",
        overlap=not asked.pop("no_overlap"),
        compiled=asked["compiled"],
        compiled_loss=asked.pop("compiled"),
        expert_overlap=asked.pop("expert_overlap"),
        gradient_bytes=4.0 if sharding == "zero1" else 2.0,
        async_gradients=sharding == "zero1",
    )
    layout = replace(
        layout, slots=layout.pp > 1 and model.layers % layout.pp != 0 and (model.layers + 2) % layout.pp == 0
    )
    gpu.peak(layout.precision)
    check(model, layout, gpu)
    return layout
