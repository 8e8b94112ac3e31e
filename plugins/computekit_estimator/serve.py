"""``computekit estimator infer``: latency, throughput and memory of serving a transformer on a named device."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from computekit import StepRun, options

from .count import Putter, dimensions, subject_of, tell
from .errors import CannotPredict
from .parallel import device, find_device, require_gpu

if TYPE_CHECKING:
    from .hardware import Gpu
    from .infer import Serving
    from .transformer import Transformer

FORMATS = ("fp32", "fp16", "bf16", "fp8", "int8", "int4", "int4g32", "int4g64", "int4g128")


@click.command()
@click.argument("model", type=options.InputPath("model"), required=False)
@options.arch()
@dimensions
@device
@click.option("--tp", type=click.IntRange(min=1), default=1, show_default=True, help="Tensor parallelism.")
@click.option("--batch", type=click.IntRange(min=1), default=1, show_default=True, help="Sequences served at once.")
@click.option("--prompt", type=click.IntRange(min=1), default=512, show_default=True, help="Tokens of each prompt.")
@click.option("--new-tokens", type=click.IntRange(min=1), default=128, show_default=True, help="Tokens to generate.")
@click.option("--precision", type=click.Choice(FORMATS), default="bf16", show_default=True, help="Format of weights.")
@click.option("--kv-bits", type=click.Choice(["16", "8", "4"]), default="16", show_default=True, help="Cache entries.")
@click.option("--no-graphs", is_flag=True, help="Kernels are launched one by one, not as a captured graph.")
@options.step
def infer(
    run: StepRun,
    model: Path | None,
    arch: str | None,
    arch_args: dict[str, Any] | None,
    device_name: str,
    node_gpus: int | None,
    network_gb_s: float | None,
    tp: int,
    batch: int,
    prompt: int,
    new_tokens: int,
    precision: str,
    kv_bits: str,
    no_graphs: bool,
    **asked: Any,
) -> None:
    """Estimate prefill and decode latency, throughput over batch size, and memory of serving a transformer.

    \b
    Example:
      computekit estimator infer --config config.json --device-name H100-SXM5-80GB --batch 8 --prompt 1024
      computekit estimator infer --layers 80 --hidden 8192 --heads 64 --kv-heads 8 --ffn 28672 --gated --untied \\
        --vocab 128256 --device-name A100-SXM4-80GB --tp 4 --precision int8
    """
    from .infer import Serving, check

    subject = subject_of(model, arch, arch_args, asked)
    if model is not None:
        run.input(model)
    if subject.dims is None:
        raise CannotPredict("serving is modelled for transformers: give --config or --layers and --hidden")
    gpu = find_device(device_name, node_gpus, network_gb_s)
    require_gpu(gpu)
    serving = Serving(batch, tp, precision, int(kv_bits) / 8, not no_graphs)
    check(subject.dims, serving)
    put = Putter(run.row(run.label or subject.label, subject.sha256))
    _put(run, put, subject.dims, serving, gpu, prompt, new_tokens)


def _put(
    run: StepRun, put: Putter, model: Transformer, serving: Serving, gpu: Gpu, prompt: int, new_tokens: int
) -> None:
    from . import accuracy
    from . import infer as serve

    first = float(serve.prefill(model, serving, gpu, prompt))
    each = float(serve.decode(model, serving, gpu, prompt + new_tokens / 2))
    whole = float(serve.request(model, serving, gpu, prompt, new_tokens))
    context = prompt + new_tokens
    memory = float(serve.memory_bytes(model, serving, context))
    put("prefill_s", first, "s", **accuracy.of("prefill").about(first))
    put("decode_s_per_token", each, "s", **accuracy.of("decode").about(each))
    put("latency_s", whole, "s", **accuracy.of("decode").about(whole))
    put("tokens_per_s", serving.batch * new_tokens / whole, "token/s", "all sequences, prefill included")
    put("weight_bytes", float(serve.weight_bytes(model, serving)), "B", "on each device")
    put("kv_cache_bytes", float(serve.cache_bytes(model, serving, context)), "B", f"on each device, {context} tokens")
    put("peak_memory_bytes", memory, "B", "on each device: weights, cache, activations of the prompt, context")
    put("memory_fits", "yes" if memory <= gpu.memory_bytes else "no", "", f"of {gpu.memory_bytes / 1e9:.0f} GB")
    if unknown := accuracy.caveat(gpu.name):
        tell(run, unknown)
    rows = _over_batch(model, serving, gpu, prompt, new_tokens)
    run.details["over_batch"] = rows
    run.show(_batch_table(rows))


def _over_batch(model: Transformer, serving: Serving, gpu: Gpu, prompt: int, new_tokens: int) -> list[dict[str, float]]:
    """Throughput and latency for batch sizes up to what fits."""
    from dataclasses import replace

    from . import infer as serve

    rows = []
    for power in range(11):
        at = replace(serving, batch=2**power)
        if float(serve.memory_bytes(model, at, prompt + new_tokens)) > gpu.memory_bytes:
            break
        whole = float(serve.request(model, at, gpu, prompt, new_tokens))
        step = float(serve.decode(model, at, gpu, prompt + new_tokens / 2))
        rows.append({
            "batch": at.batch, "decode_s_per_token": step, "latency_s": whole,
            "tokens_per_s": at.batch * new_tokens / whole,
        })  # fmt: skip
    return rows


def _batch_table(rows: list[dict[str, float]]) -> str:
    from tabulate import tabulate

    body = [
        (f"{r['batch']}", f"{1e3 * r['decode_s_per_token']:.4g}", f"{r['latency_s']:.4g}", f"{r['tokens_per_s']:,.0f}")
        for r in rows
    ]
    header = ["batch", "ms per token", "request s", "tokens/s"]
    return tabulate(body, header, tablefmt="plain", disable_numparse=True, colalign=("right",) * 4) if body else \
        "no batch fits the device's memory"  # fmt: skip
