"""What a published row means: its model, device and layout.

Every rule here is about how tables spell things, which software a source names, or what follows from the columns that
are there; none changes a rate.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

from . import hardware, spelling
from .errors import CannotPredict
from .hardware import Gpu
from .layout import Layout, Recompute, Sharding, wants_slots
from .runs import Run
from .transformer import Transformer

_LATENT: tuple[tuple[str, dict[str, int]], ...] = (
    (r"deepseek.?v2.?lite", {"q_lora": 0, "expert_ffn": 1408, "shared_experts": 2, "dense_layers": 1}),
    (r"deepseek.?v2", {"q_lora": 1536, "expert_ffn": 1536, "shared_experts": 2, "dense_layers": 1}),
    (r"deepseek.?(v3|r1)", {"q_lora": 1536, "expert_ffn": 2048, "shared_experts": 1, "dense_layers": 3}),
    (r"kimi.?k2", {"q_lora": 1536, "expert_ffn": 2048, "shared_experts": 1, "dense_layers": 1}),
)
"""Models with latent attention by name: what no column holds, from their config.json. All of them have kv_lora 512,
heads of 128 + 64 (queries and keys) and 128 (values)."""

_IN_TEXT = {
    "q_lora": r"q_lora (\d+)", "kv_lora": r"kv_lora (\d+)", "nope": r"nope (\d+)", "rope_dim": r"rope (\d+)",
    "v_dim": r"\bv (\d+)", "dense_layers": r"(\d+) dense layers?", "shared_experts": r"(\d+) shared experts?",
    "expert_ffn": r"(?:moe_inter|expert width|moe_ffn)\w* (\d+)",
}  # fmt: skip
"""How a row's definition gives dimensions that have no column."""

TOKENS_A_STEP = 2**22
"""Assumed where the batch is not published: what large language models are usually trained with (GPT-3: 3.2 million,
LLaMA: 4 million)."""


def model_of(run: Run) -> Transformer:
    """The transformer of a row; raises CannotPredict if its dimensions are not all there."""
    layers, hidden = run.whole("layers"), run.whole("hidden")
    heads = run.whole("heads", max(hidden // 128, 1))  # 128 wide, as most are
    gated = spelling.yes(run.text("ffn_gated"))
    experts = run.whole("experts", 0, least=0)
    latent = _latent_of(run) if experts and not run.text("kv_heads") else {}
    if experts and not run.text("kv_heads") and not latent:
        raise CannotPredict("a mixture without kv_heads: the columns do not hold latent attention, shared experts or "
                            "the experts' own width")  # fmt: skip
    vocab = run.whole("vocab", 0, least=0)
    ffn = run.whole("ffn", 4 * hidden)
    rough = layers * (4 + (3 if gated else 2) * ffn / hidden * max(experts, 1)) * hidden**2
    asked = run.whole("in_len", 0, least=0) + run.whole("out_len", 0, least=0)
    model = Transformer(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=run.whole("kv_heads", heads, least=0) or heads,
        head_dim=latent.pop("head_dim", round(hidden / heads)),  # tables round: GPT-3 13B has hidden 5140 and 40 heads
        ffn=ffn,
        gated=gated,
        vocab=vocab,
        seq=run.whole("seq", asked or 2048),
        experts=experts,
        topk=run.whole("topk", 2) if experts else 0,
        tied=not gated or vocab * hidden > 0.1 * rough,  # where they weigh much, embeddings are shared
        rotary=gated,
        bias=not gated,
        name=run.text("model"),
        **latent,
    )
    return model if run.kind == "param_count" or latent else _usual_head(model)


def _latent_of(run: Run) -> dict[str, Any]:
    """Latent attention and shared experts, from the row's definition or for a model that is known by name."""
    text = run.text("definition").lower()
    found = {name: int(match[1]) for name, pattern in _IN_TEXT.items() if (match := re.search(pattern, text))}
    if "kv_lora" in found:
        nope = found.pop("nope", 128)
        return {**found, "head_dim": nope + found.get("rope_dim", 64)}
    named = next((known for pattern, known in _LATENT if re.search(pattern, run.text("model").lower())), None)
    if named is None:
        return {}
    return {"kv_lora": 512, "rope_dim": 64, "v_dim": 128, "head_dim": 192, **named}


def _usual_head(model: Transformer) -> Transformer:
    """``model`` with a head dimension of 64, 128 or 256 where only that gives the size in its name ("PaLM-540B").

    Tables have no column for it, and some models have heads narrower or wider than hidden / heads.
    """
    size = re.search(r"(?<![\w.])(\d+(?:\.\d+)?)\s?B\b", model.name, re.IGNORECASE)
    if not size or model.experts:
        return model
    wanted = float(size[1]) * 1e9
    others = [replace(model, head_dim=d, v_dim=d) for d in (64, 128, 256) if d != model.head_dim]
    best = min(others, key=lambda other: abs(other.parameters / wanted - 1))
    off, still = abs(model.parameters / wanted - 1), abs(best.parameters / wanted - 1)
    return best if off > 0.04 and still < min(0.02, off / 3) else model


def gpu_of(run: Run) -> Gpu:
    """The device of a row, with its network where the row tells it."""
    name = run.text("hardware")
    if not name:
        raise CannotPredict("the hardware is not published")
    gpu = hardware.find(name, published=True)
    rate = hardware.node_network(run.text("definition"))
    return replace(gpu, network_rate=rate / gpu.node_gpus) if rate else gpu


def cache_element(run: Run) -> float:
    """Bytes of an element of the key-value cache: TensorRT-LLM's tables in fp8 have an fp8 cache."""
    about = f"{run.text('definition')} {run.text('source')}".lower()
    narrow = "tensorrt-llm" in about or re.search(r"(fp8|int8) (kv|cache)", about)
    return 1.0 if spelling.precision(run.text("precision")) == "fp8" and narrow else 2.0


def group_kernels(run: Run) -> bool:
    """Whether the software's attention reads the keys of a group once: TensorRT-LLM's came with version 0.7."""
    source = run.text("source").lower()
    return not ("fastertransformer" in source or re.search(r"tensorrt-llm.*(v|release/)0\.[56]", source))


def of_allocator(run: Run) -> bool:
    """Whether a row's memory is what PyTorch's allocator reserved, as torchtitan logs it: without the context."""
    return "reserved" in run.text("unit") or "torchtitan" in run.text("source").lower()


_DEEPSPEED = ("deepspeed", "2201.11990")
"""What marks a source as runs of the DeepSpeed engine; the number is "Using DeepSpeed and Megatron to Train ..."."""


def ranks_of(run: Run, name: str, default: int | None = None) -> int:
    """Ranks of one kind of parallelism (tp, pp, cp, ep, dp), which may be in the definition: "PP16 x EP64"."""
    written = re.search(rf"\b{name}[ =-]?(\d+)\b", run.text("definition"), re.IGNORECASE)
    if not run.text(name) and written:
        return int(written[1])
    return run.whole(name, default)


def has_layout(run: Run) -> bool:
    """Whether the row says how the devices are used."""
    said = any(ranks_of(run, name, 0) if not run.text(name) else True for name in ("tp", "pp", "dp"))
    return run.whole("num_gpus", 0, least=0) == 1 or said


def devices_of(run: Run) -> int | None:
    """Devices of a row; the product of its ranks where the column is empty, None where there are none either."""
    product = math.prod(ranks_of(run, name, 1) for name in ("tp", "pp", "cp", "dp"))
    return run.whole("num_gpus", product if run.text("dp") else 0, least=0) or None


def batch_of(run: Run, model: Transformer, replicas: int = 1, stages: int = 1) -> int:
    """Sequences of one step; where they are not published, `TOKENS_A_STEP` or more: four for each stage of a pipeline.

    Rounded to a multiple of ``replicas``.
    """
    if run.text("global_batch"):
        return run.whole("global_batch")
    least = 4 * stages if stages > 1 else 1
    return max(round(TOKENS_A_STEP / model.seq / replicas), least) * replicas


def unsaid(run: Run, layout: Layout) -> list[tuple[Sharding, Recompute]]:
    """Sharding and recomputation that a row may have used, least first; one pair where its cells say both."""
    recompute: tuple[Recompute, ...] = (layout.recompute,) if run.text("recompute") else ("none", "operators", "full")
    sharding: tuple[Sharding, ...] = (layout.sharding,)
    if not run.text("sharding") and layout.sharding == "none" and layout.num_gpus > 1:
        sharding = ("none", "zero1", "zero3")
    return [(shard, again) for shard in sharding for again in recompute]


def dual_pipe(run: Run) -> bool:
    """Whether the run's software overlaps expert parallelism: DeepSeek's does."""
    return "dualpipe" in run.text("definition").lower() or "deepseek" in run.text("source").lower()


def precision_of(run: Run, gpu: Gpu) -> str:
    """Precision of training products; half precision of the device's time where it is not published."""
    if run.text("precision"):
        return spelling.precision(run.text("precision"))
    return "bf16" if "bf16" in gpu.peak_flops else "fp16"


def layout_of(run: Run, model: Transformer, gpu: Gpu) -> Layout:
    """The layout of a training row that has one.

    What the columns do not hold follows from them. Attention wrote its score matrix in the Megatron and DeepSpeed
    stacks before fused kernels: Ampere or older, no FSDP, activations recomputed or fp16. Those stacks also did not
    overlap gradient communication, and dropped attention and residuals out. Sequence parallelism, the distributed
    optimizer and gradients that are summed inside products came to Megatron in 2022 (arXiv:2205.05198).
    A microbatch or an interleaving of 0 is one that is not published.
    """
    gpus = devices_of(run)
    if gpus is None:
        raise CannotPredict("num_gpus is not published")
    tp, pp, cp = (ranks_of(run, name, 1) for name in ("tp", "pp", "cp"))
    dp = ranks_of(run, "dp", max(gpus // (tp * pp * cp), 1))
    if tp * pp * cp * dp != gpus:
        raise CannotPredict(f"tp x pp x cp x dp = {tp * pp * cp * dp} is not the {gpus} devices of the row")
    sharding, note = run.text("sharding").lower(), run.text("definition").lower()
    recompute = spelling.recompute(run.text("recompute"))
    half = precision_of(run, gpu)
    fsdp = "fsdp" in sharding or sharding.startswith("zero2")
    distributed_optimizer = spelling.sharding(sharding) == "zero1" and "dist" in sharding
    plain = recompute == "none" and half != "fp16"
    modern = gpu.year >= 2022 or gpu.kind != "gpu" or fsdp or distributed_optimizer or "flash" in note or plain
    about = f"{note} {run.text('source').lower()}"
    deepspeed = sharding.startswith("zero") or any(name in about for name in _DEEPSPEED)
    fp32_gradients = "fp32 grad" in note or "fsdp2" in sharding or distributed_optimizer
    eager = re.search(r"\b(no|not|non|without)[ -](torch\.)?compile|uncompiled", note)
    compiled = ("compile" in note and not eager) or ("fsdp2" in sharding and half == "fp8") or gpu.kind == "tpu"
    micro, batch = _microbatch(run, model, dp, pp)
    return Layout(
        tp=tp,
        pp=pp,
        cp=cp,
        ep=ranks_of(run, "ep", 1) if model.experts else 1,
        dp=dp,
        vp=run.whole("vp", 1 if pp == 1 or "1f1b" in note else 0),
        microbatch=micro,
        global_batch=batch,
        precision=half,
        recompute=recompute,
        sharding=spelling.sharding(sharding or ("fsdp" if "fsdp" in note else "")),
        sequence_parallel=spelling.yes(run.text("seq_parallel")) or ("fsdp2" in sharding and tp > 1),
        fused_attention=modern,
        overlap=modern or sharding.startswith("zero3"),
        compiled=compiled,
        compiled_loss=compiled and not re.search(r"torchtitan.*_2024\d\d", about),
        gradient_bytes=4.0 if fp32_gradients else 2.0,
        slots=wants_slots(model.layers, pp),
        dropout=not modern,
        rails=modern,
        blocking=not modern and deepspeed,
        tensor_overlap="asynctp" in note or distributed_optimizer,
        expert_overlap=dual_pipe(run),
        async_gradients=distributed_optimizer or spelling.yes(run.text("seq_parallel")) or "2205.05198" in about,
    )


def _microbatch(run: Run, model: Transformer, dp: int, pp: int) -> tuple[int, int]:
    """Sequences of a microbatch (0: not published) and of a step."""
    micro = run.number("microbatch")
    if run.text("microbatch") and (micro is None or micro < 1 or micro % 1):
        raise CannotPredict(f"microbatch {run.text('microbatch')!r} is no whole number of at least 1")
    micro = int(micro or 0)
    if run.text("global_batch") or not micro or run.text("tokens"):
        batch = batch_of(run, model, dp * max(micro, 1), pp)
    else:
        batch = dp * micro
    if batch < dp * max(micro, 1):
        raise CannotPredict(f"a step of {batch} sequences is no microbatch for each of {dp} replicas")
    if pp > 1 and micro and batch == dp * micro:
        # a pipeline of a single microbatch is none: the table gives the rank's whole batch, cut in one for each stage
        micro = next(size for size in range(max(micro // pp, 1), 0, -1) if micro % size == 0)
    return micro, batch
