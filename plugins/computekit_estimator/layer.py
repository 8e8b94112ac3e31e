"""Time of one transformer layer on one rank, forward and backward, operator by operator.

The four products of a layer (QKV, output projection, up, down), attention, the memory-bound rest, and the collectives
of tensor parallelism. Symbols as in `transformer`; M tokens of a microbatch on this rank; t = tp.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from . import collectives, gemm
from .constants import Constants
from .hardware import Gpu
from .layout import Layout
from .transformer import Transformer

Number = Any


@dataclass
class LayerTime:
    """Seconds of one microbatch in one layer. ``comm`` is what tensor, context and expert parallelism leave exposed."""

    products: Number
    attention: Number
    elementwise: Number
    comm: Number

    @property
    def total(self) -> Number:
        """All of it."""
        return self.products + self.attention + self.elementwise + self.comm

    @property
    def compute(self) -> Number:
        """What the multiprocessors do."""
        return self.products + self.attention + self.elementwise


def forward(model: Transformer, layout: Layout, gpu: Gpu, c: Constants) -> LayerTime:
    """One layer's forward pass."""
    tokens = layout.microbatch * model.seq / layout.cp
    products: Number = 0.0
    for n, k, batch, rows in _products(model, layout, tokens):
        products = products + _product(gpu, layout, rows, n, k, batch, c)
    return _layer_time(model, layout, gpu, c, tokens, products, backward=False)


def backward(model: Transformer, layout: Layout, gpu: Gpu, c: Constants) -> LayerTime:
    """One layer's backward pass, recomputation not included: gradients by input and by weight."""
    tokens = layout.microbatch * model.seq / layout.cp
    products: Number = 0.0
    for n, k, batch, rows in _products(model, layout, tokens):
        products = products + _product(gpu, layout, rows, k, n, batch, c)
        products = products + _product(gpu, layout, k, n, rows, batch, c)
    return _layer_time(model, layout, gpu, c, tokens, products, backward=True)


def _layer_time(
    model: Transformer, layout: Layout, gpu: Gpu, c: Constants, tokens: Number, products: Number, backward: bool
) -> LayerTime:
    attention = _attention(model, layout, gpu, c, backward)
    elementwise = _elementwise(model, layout, gpu, c, tokens, backward)
    compute = products + attention + elementwise
    return LayerTime(products, attention, elementwise, _comm(model, layout, gpu, c, tokens, backward, compute))


def recompute(model: Transformer, layout: Layout, gpu: Gpu, c: Constants) -> Number:
    """What recomputation adds to the backward pass: all of the forward pass, attention's core, or every second product.

    "operators" is the policy of torchtitan's selective checkpointing: attention and every second product are kept.
    "layers" recomputes every second layer whole, here as half of each.
    """
    if layout.recompute in ("full", "layers"):
        once = forward(model, layout, gpu, c).total
        return once if layout.recompute == "full" else once / 2
    if layout.recompute == "selective":
        return _attention(model, layout, gpu, c, backward=False)
    if layout.recompute == "operators":
        once = forward(model, layout, gpu, c)
        return once.products / 2 + once.elementwise
    return 0.0


def attention_core(model: Transformer, layout: Layout, gpu: Gpu, c: Constants, backward: bool = False) -> Number:
    """The attention kernels alone."""
    return _attention(model, layout, gpu, c, backward)


def _products(model: Transformer, layout: Layout, tokens: Number) -> list[tuple[Number, Number, Number, Number]]:
    """(n, k, batch, rows) of each weight product of the forward pass."""
    t = layout.tp
    products: list[tuple[Number, Number, Number, Number]] = [(n, k, 1, tokens) for n, k in model.attention_products(t)]
    blocks: list[tuple[Number, Number, Number]] = []  # width, batch, rows
    if model.experts:
        batch = model.experts / layout.ep
        blocks.append((model.expert_ffn, batch, tokens * model.topk / batch))
        if model.shared_experts:
            blocks.append((model.expert_ffn * model.shared_experts, 1, tokens))
    else:
        blocks.append((model.ffn, 1, tokens))
    for width, batch, rows in blocks:
        products.append(((2 if model.gated else 1) * width / t, model.hidden, batch, rows))
        products.append((model.hidden, width / t, batch, rows))
    return products


def _product(gpu: Gpu, layout: Layout, m: Number, n: Number, k: Number, batch: Number, c: Constants) -> Number:
    # experts hold different numbers of tokens: each one's product is a kernel of its own
    element = {"fp4": 0.5, "fp8": 1.0, "fp32": 4.0, "tf32": 4.0}.get(layout.precision, 2.0)
    return batch * gemm.seconds(gpu, layout.precision, m, n, k, 1, element, c)


def _attention(model: Transformer, layout: Layout, gpu: Gpu, c: Constants, backward: bool) -> Number:
    half = "bf16" if layout.precision in ("fp4", "fp8") else layout.precision
    s, d = model.seq, model.head_dim
    heads = layout.microbatch * model.heads / layout.tp
    if layout.fused_attention:
        pairs = s * (s + 1) / 2 / layout.cp
        flops = 2.0 * heads * pairs * (d + model.v_dim) * (2.5 if backward else 1.0)
        rate = gpu.sustained(half, c) * flash_share(s, d, c)
        return flops / rate + c.kernel_s * (3 if backward else 1)
    score = gemm.seconds(gpu, half, s, s, d, heads, 2.0, c)
    value = gemm.seconds(gpu, half, s, d, s, heads, 2.0, c)
    elements = heads * s * s
    drop = 5.0 if layout.dropout else 0.0
    if backward:
        dkey = gemm.seconds(gpu, half, s, d, s, heads, 2.0, c)
        return score + value + 2 * dkey + gemm.elementwise(gpu, elements * (6.0 + drop), 2, c)
    return score + value + gemm.elementwise(gpu, elements * (4.0 + drop), 2, c)


def flash_share(seq: Number, head_dim: Number, c: Constants) -> Number:
    """Share of the sustained rate that fused attention reaches; narrow heads wait for the exponentials."""
    return c.flash * seq / (seq + c.flash_ramp) * np.minimum(1.0, head_dim / 128) ** 0.5


def _elementwise(model: Transformer, layout: Layout, gpu: Gpu, c: Constants, tokens: Number, backward: bool) -> Number:
    """Norms, residuals, activation, copies around attention; in the backward pass also adding up weight gradients."""
    t = layout.tp
    shared = t if layout.sequence_parallel else 1
    element = 4.0 if layout.precision in ("fp32", "tf32") else 2.0
    norm, residual, kernels = 2 * element, 3 * element + (1.0 if layout.dropout else 0.0), 8.0
    if layout.compiled:
        norm, residual, kernels = element, 3 * element, 5.0
    inner = tokens * (model.expert_ffn * (model.topk + model.shared_experts) if model.experts else model.ffn)
    traffic = 2 * (norm + residual) * tokens * model.hidden / shared
    traffic = traffic + 2 * element * tokens * (model.q_width + model.kv_width) / t
    traffic = traffic + (3 if model.gated else 2) * element * inner / t
    if model.experts:  # rows are sorted by expert, and brought back
        traffic = traffic + 4 * element * tokens * model.topk * model.hidden / shared
    if layout.precision in ("fp4", "fp8"):
        traffic = traffic + 3.0 * (2 * tokens * model.hidden / shared + tokens * model.v_width / t + inner / t)
    if not backward:
        return gemm.elementwise(gpu, traffic, kernels, c)
    weights = (model.common_layer_params + model.routed_layer_params / layout.ep) / t
    if layout.sharding in ("zero2", "zero3"):
        weights = weights / np.where(layout.pp > 1, 1, layout.dp)  # the shard that a rank keeps
    summed = 0.0 if layout.async_gradients else 2.0 + 2.0 * layout.gradient_bytes
    accumulate = np.where(layout.microbatches > 1, weights * summed, 0.0)
    return gemm.elementwise(gpu, 2 * traffic + accumulate, 2 * kernels, c)


def _comm(
    model: Transformer, layout: Layout, gpu: Gpu, c: Constants, tokens: Number, backward: bool, compute: Number
) -> Number:
    """Tensor parallelism: two all-reduces (or gather and scatter) of the activations each way.

    Expert parallelism: tokens go to their experts and come back, behind ``compute`` where that overlaps.
    """
    size = 2.0 * tokens * model.hidden
    each = collectives.all_reduce(gpu, size, layout.tp, np.minimum(layout.tp, gpu.node_gpus), c)
    total = 2 * each
    if backward and layout.sequence_parallel:
        total = total * 1.25  # the gathered input is gathered again for the weight gradient
    if backward and ((layout.sequence_parallel and layout.overlap) or layout.async_gradients):
        total = total * 0.5  # half of it hides behind the weight gradient's product
    if layout.tensor_overlap:
        total = total * (1.0 - c.tensor_hidden)
    if model.experts:
        spread = size * model.topk / np.where(layout.sequence_parallel, layout.tp, 1)
        near = np.minimum(layout.ep, np.maximum(gpu.node_gpus // layout.tp, 1))
        copies = model.topk if layout.expert_overlap else 0
        travel = 2 * collectives.all_to_all(gpu, spread, layout.ep, near, c, copies)
        total = total + np.maximum(travel - np.where(layout.expert_overlap, compute, 0.0), 0.0)
    ring = 2.0 * tokens * model.kv_width / layout.tp * (layout.cp - 1) * (2 if backward else 1)
    hidden = _attention(model, layout, gpu, c, backward)
    exposed = np.maximum(ring / (gpu.node_rate * c.node_link) - hidden, 0.0)
    return total + np.where(layout.cp > 1, exposed, 0.0)
