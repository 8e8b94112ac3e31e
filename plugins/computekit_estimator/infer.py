"""Latency, throughput and memory of serving a transformer: prefill and decode.

Prefill is a forward pass over the prompt. A decode step reads every weight and the whole key-value cache once for one
new token of each sequence, so it is bound by memory until the batch is large.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from . import collectives, gemm
from .constants import CONSTANTS, Constants
from .divisors import near
from .errors import CannotPredict, ImpossibleLayout
from .hardware import Gpu
from .layer import flash_share
from .memory import CONTEXT_BYTES
from .transformer import Transformer

Number = Any

WEIGHT_BYTES = {
    "fp32": 4.0, "tf32": 4.0, "fp16": 2.0, "bf16": 2.0, "fp8": 1.0, "int8": 1.0, "int4": 0.5, "int4g32": 0.625,
    "int4g64": 0.5625, "int4g128": 0.53125, "nf4": 0.516, "fp4": 0.5625, "w8a8": 1.0, "q8_0": 1.0625, "q6_k": 0.820,
    "q5_k_m": 0.711, "q5_k_s": 0.688, "q5_0": 0.6875, "q4_k_m": 0.606, "q4_k_s": 0.573, "q4_0": 0.5625, "q4_1": 0.625,
    "q3_k_m": 0.489, "q3_k_s": 0.438, "q2_k": 0.419, "iq4_xs": 0.531, "iq4_nl": 0.5625,
}  # fmt: skip
"""Bytes of a weight as stored; int4gN has a half-precision scale and zero point for each N weights; q... are GGUF's
formats, mixed ones at the average over a large model."""

_WHOLE = ("fp32", "tf32", "fp16", "bf16", "fp8", "fp4")
COMPUTES_IN = {**{name: "bf16" for name in WEIGHT_BYTES if name not in _WHOLE}, "w8a8": "int8"}
"""Weight-only formats compute in half precision."""

_KERNELS = 12
"""Kernels of one layer in one step: norms, four products, attention, cache, activation, residuals."""


@dataclass(frozen=True)
class Serving:
    """How a model is served, over ``tp`` x ``pp`` devices.

    ``graphs`` replays captured launches instead of launching each kernel. With ``pp`` stages a batch passes one stage
    after the other, so that a stage holds fewer weights but no token comes sooner. ``group_kernels`` read the keys and
    values of a group once for all its query heads; without them each head reads them again, from the cache.
    """

    batch: Number = 1
    tp: Number = 1
    precision: str = "bf16"
    kv_bytes: float = 2.0
    graphs: bool = True
    pp: Number = 1
    group_kernels: bool = True


def prefill(model: Transformer, serving: Serving, gpu: Gpu, prompt: Number, constants: Constants = CONSTANTS) -> Number:
    """Seconds until the first token of ``serving.batch`` prompts of ``prompt`` tokens."""
    c = constants
    tokens = serving.batch * prompt
    products = model.layers * _products(model, serving, gpu, tokens, c) + _head(model, serving, gpu, c)
    heads = serving.batch * model.heads / serving.tp
    flops = 2.0 * heads * prompt * (prompt + 1) / 2 * (model.head_dim + model.v_dim)
    attention = flops / (gpu.sustained(_half(serving, gpu), c) * flash_share(prompt, model.head_dim, c))
    traffic = 2.0 * tokens * (10 * model.hidden + (3 if model.gated else 2) * _inner(model) / serving.tp)
    rest = gemm.elementwise(gpu, traffic, 0, c, 2.0 * tokens * model.hidden) + _launches(serving, c)
    sync = _sync(model, replace(serving, graphs=False), gpu, tokens, c)  # prompts vary too much to capture a graph
    layers = model.layers * (attention + rest + sync)
    return products + layers + _hops(model, serving, gpu, tokens, c) + c.request_s


def decode(model: Transformer, serving: Serving, gpu: Gpu, context: Number, constants: Constants = CONSTANTS) -> Number:
    """Seconds of one step that gives every sequence of the batch one token, after ``context`` tokens each."""
    c = constants
    products = model.layers * _products(model, serving, gpu, serving.batch, c) + _head(model, serving, gpu, c)
    cache = serving.kv_bytes * serving.batch * context * _cache_width(model, serving)
    if not serving.group_kernels:
        cache = cache * (1 + (model.heads / model.kv_heads - 1) / c.cache_gain)
    attention = cache / (gpu.memory_rate * c.stream)
    layers = model.layers * (attention + _launches(serving, c) + _sync(model, serving, gpu, serving.batch, c))
    return products + layers + _hops(model, serving, gpu, serving.batch, c)


def request(
    model: Transformer, serving: Serving, gpu: Gpu, prompt: int, new: int, constants: Constants = CONSTANTS
) -> Number:
    """Seconds of a whole request: prefill gives the first token, each decode step another one."""
    middle = prompt + (new - 1) / 2
    return prefill(model, serving, gpu, prompt, constants) + (new - 1) * decode(model, serving, gpu, middle, constants)


def weight_bytes(model: Transformer, serving: Serving) -> Number:
    """Weights on one device; embeddings stay in half precision."""
    each = WEIGHT_BYTES[serving.precision]
    ends = (model.embedding_params + model.head_params) * max(each, 2.0)
    return (model.layers * model.layer_params * each / serving.pp + ends) / serving.tp


def cache_bytes(model: Transformer, serving: Serving, context: Number) -> Number:
    """Key-value cache on one device, all sequences."""
    layers = model.layers / serving.pp
    return serving.kv_bytes * layers * serving.batch * context * _cache_width(model, serving)


def memory_bytes(model: Transformer, serving: Serving, context: Number) -> Number:
    """Weights, cache, activations of the prompt and the process's own share."""
    activations = 2.0 * serving.batch * context * (4 * model.hidden + 2 * _inner(model) / serving.tp)
    return weight_bytes(model, serving) + cache_bytes(model, serving, context) + activations + CONTEXT_BYTES


def check(model: Transformer, serving: Serving) -> None:
    """Refuse formats without a size and heads that do not divide."""
    if serving.precision not in WEIGHT_BYTES:
        raise CannotPredict(f"precision {serving.precision!r} is unknown; known: {', '.join(WEIGHT_BYTES)}")
    tp = int(serving.tp)
    if model.heads % tp:
        nearest = near(model.heads, tp)
        raise ImpossibleLayout(f"tp={tp} does not divide {model.heads} heads; the nearest is tp={nearest}")


def _half(serving: Serving, gpu: Gpu) -> str:
    half = COMPUTES_IN.get(serving.precision, serving.precision)
    if half in ("fp8", "bf16"):
        half = "bf16" if "bf16" in gpu.peak_flops else "fp16"
    return half


def _inner(model: Transformer) -> int:
    """Feed-forward elements that one token computes."""
    return model.expert_ffn * (model.topk + model.shared_experts) if model.experts else model.ffn


def _cache_width(model: Transformer, serving: Serving) -> Number:
    """Cache elements of one token in one layer on one device; a latent vector, or a last head, is on every one."""
    if model.kv_lora:
        return model.cache_width
    return model.cache_width / np.minimum(serving.tp, model.kv_heads)


def _products(model: Transformer, serving: Serving, gpu: Gpu, rows: Number, c: Constants) -> Number:
    """The weight products of a layer for ``rows`` tokens."""
    t = serving.tp
    products: list[tuple[Number, Number, bool]] = [(n, k, False) for n, k in model.attention_products(t)]
    up = 2 if model.gated else 1
    if model.experts:
        products += [(up * model.expert_ffn / t, model.hidden, True), (model.hidden, model.expert_ffn / t, True)]
    common = model.expert_ffn * model.shared_experts if model.experts else model.ffn
    if common:
        products += [(up * common / t, model.hidden, False), (model.hidden, common / t, False)]
    return sum(_product(model, serving, gpu, rows, n, k, expert, c) for n, k, expert in products)


def _product(
    model: Transformer, serving: Serving, gpu: Gpu, rows: Number, n: Number, k: Number, expert: bool, c: Constants
) -> Number:
    computes = COMPUTES_IN.get(serving.precision, serving.precision)
    experts: Number = 1.0
    if expert and model.experts:
        asked = rows * model.topk  # distinct experts that this many choices touch, chosen evenly
        experts = model.experts * (1 - (1 - 1 / model.experts) ** asked)
        rows = asked / experts
    rate = gpu.memory_rate * c.stream * (c.dequantise if serving.precision in COMPUTES_IN else 1.0)
    stream = experts * (n * k * WEIGHT_BYTES[serving.precision] + 2.0 * rows * (n + k)) / rate
    compute = gemm.seconds(gpu, computes, np.maximum(rows, 1), n, k, experts, 0.0, c) - c.kernel_s
    # kernels for a few rows do not compute the rest of a tile of 16
    return np.maximum(stream, compute * np.minimum(np.maximum(rows, 1) / 16, 1.0))


def _head(model: Transformer, serving: Serving, gpu: Gpu, c: Constants) -> Number:
    """Logits of the last position of each sequence."""
    return _product(model, serving, gpu, serving.batch, model.vocab / serving.tp, model.hidden, False, c)


def _launches(serving: Serving, c: Constants) -> float:
    return _KERNELS * (c.graph_kernel_s if serving.graphs else c.kernel_s)


def _sync(model: Transformer, serving: Serving, gpu: Gpu, tokens: Number, c: Constants) -> Number:
    """Two all-reduces a layer; without graphs each also waits for the slowest host."""
    size = 2.0 * tokens * model.hidden
    each = collectives.all_reduce(gpu, size, serving.tp, np.minimum(serving.tp, gpu.node_gpus), c)
    wait = 0.0 if serving.graphs else c.host_sync_s
    return 2 * np.where(np.asarray(serving.tp) > 1, each + wait, 0.0)


def _hops(model: Transformer, serving: Serving, gpu: Gpu, tokens: Number, c: Constants) -> Number:
    """Activations from stage to stage, and the new tokens back to the first."""
    inside = serving.tp * serving.pp <= gpu.node_gpus
    return np.where(serving.pp > 1, serving.pp * collectives.send(gpu, 2.0 * tokens * model.hidden, inside, c), 0.0)
