"""Peak memory of one rank in training, part by part.

Activations follow Korthikanti et al. 2022 (arXiv:2205.05198), equation 2 and section 4, generalised to gated blocks,
grouped heads and fused attention. Bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .hardware import Gpu
from .layout import Layout
from .time import layer_weights, rank_parameters
from .transformer import Transformer

Number = Any

NOT_MODELLED = "not modelled: optimizer states in host memory, activation offload, fragmentation beyond the reserve"

CONTEXT_BYTES = 1.5e9
"""CUDA context, loaded kernels and library workspaces of one process."""
COMMUNICATOR_BYTES = 0.4e9
"""Channels and staging buffers of one process group's communicator."""
BUCKET_BYTES = 2.0e9
"""Buckets in which an optimizer-sharding engine reduces gradients and gathers weights (two of 5e8 halves)."""
RESERVE = 0.05
"""Share of what was allocated that the caching allocator holds beyond it."""


@dataclass
class Memory:
    """Bytes at the peak of one step on the fullest rank; they add up to ``total``."""

    weights: Number
    gradients: Number
    optimizer: Number
    activations: Number
    logits: Number
    buffers: Number
    context: Number
    fragmentation: Number

    @property
    def total(self) -> Number:
        """All parts."""
        return sum(vars(self).values())

    @property
    def reserved(self) -> Number:
        """What the framework's allocator knows of."""
        return self.total - self.context


def training(model: Transformer, layout: Layout, gpu: Gpu) -> Memory:
    """Memory of the first pipeline stage, which holds the embedding and the most microbatches in flight."""
    weights = rank_parameters(model, layout)
    replicas = layout.replicas
    full = layout.precision in ("fp32", "tf32")
    element = 4.0 if full else 2.0
    zero3, zero2 = layout.sharding == "zero3", layout.sharding in ("zero2", "zero3")
    shared = layout.sharding != "none"
    # two moments; half-precision weights also have a master copy, and at the step their gradient in fp32
    state = 8.0 if full else 12.0 if layout.gradient_bytes == 4 else 16.0
    # an fp32 sum of gradients stands beside the half-precision gradient of the current microbatch
    gradient = 4.0 if full else layout.gradient_bytes + (2.0 if layout.gradient_bytes == 4 else 0.0)
    kept = element
    if zero3:  # shards are in fp32 and their own master copy; they turn to half precision when they are gathered
        kept, gradient, state = 4.0, 4.0, 8.0
    gathered: Number = 0.0
    if zero3:  # two layers at a time, but a pipeline keeps its whole stage between microbatches
        held = np.where(layout.pp > 1, weights, 2 * layer_weights(model, layout))
        gathered = held * (element + np.where(layout.pp > 1, layout.gradient_bytes, 0.0))
    in_flight = np.minimum(layout.pp, layout.microbatches) * np.where(
        layout.vp > 1, 1 + (layout.pp - 1) / (layout.pp * layout.vp), 1.0
    )
    tokens = layout.microbatch * model.seq / layout.cp
    # the loss's gradient, the gradient of its log-softmax and that itself in fp32; compiled, logits and their gradient
    logits = tokens * model.vocab / layout.tp * (2 * element if layout.compiled_loss else 12.0)
    groups = sum(np.where(ranks > 1, 1, 0) for ranks in (layout.tp, layout.pp, layout.cp, layout.dp))
    memory = Memory(
        weights=weights * kept / (replicas if zero3 else 1),
        gradients=weights * gradient / (replicas if zero2 else 1),
        optimizer=weights * state / (replicas if shared else 1),
        activations=activation_bytes(model, layout) * in_flight,
        logits=np.where(layout.pp == 1, logits, 0.0),
        buffers=gathered + 4 * element * tokens * model.hidden + (BUCKET_BYTES if shared and not zero2 else 0.0),
        context=0.0,
        fragmentation=0.0,
    )
    return replace(memory, context=CONTEXT_BYTES + COMMUNICATOR_BYTES * groups, fragmentation=RESERVE * memory.total)


def activation_bytes(model: Transformer, layout: Layout) -> Number:
    """Activations that one microbatch leaves behind on a stage until its backward pass."""
    tokens = layout.microbatch * model.seq / layout.cp
    t = layout.tp
    shared = t if layout.sequence_parallel else 1
    most, _, _ = layout.stage_layers(model.layers)
    boundary = _element_bytes(layout) * tokens * model.hidden / shared
    whole = _layer_bytes(model, layout)
    if layout.recompute not in ("full", "operators", "layers"):
        return most * whole
    at_work = np.minimum(layout.pp, layout.microbatches)  # one layer is whole while it is recomputed
    sent = np.where(layout.pp > 1, 1, 0)  # a stage also keeps what it sends
    kept = boundary + (_kept_bytes(model, layout) if layout.recompute == "operators" else 0.0)
    if layout.recompute == "layers":
        kept = (boundary + whole) / 2
    return most * kept + sent * boundary + whole / np.maximum(at_work, 1)


def _kept_bytes(model: Transformer, layout: Layout) -> Number:
    """Results of one layer that recomputation of operators keeps: attention's, and of every second product."""
    tokens = layout.microbatch * model.seq / layout.cp
    shared = layout.tp if layout.sequence_parallel else 1
    split = model.q_width + model.kv_width + (2 if model.gated else 1) * _inner(model)
    results = split / layout.tp + 2 * model.hidden / shared
    return _element_bytes(layout) * tokens * (model.v_width / layout.tp + results / 2)


def _inner(model: Transformer) -> int:
    """Feed-forward elements that one token computes."""
    return model.expert_ffn * (model.topk + model.shared_experts) if model.experts else model.ffn


def _element_bytes(layout: Layout) -> float:
    """Bytes of one activation that is kept; products in fp8 keep theirs in 16 bits."""
    return 4.0 if layout.precision in ("fp32", "tf32") else 2.0


def _layer_bytes(model: Transformer, layout: Layout) -> Number:
    tokens = layout.microbatch * model.seq / layout.cp
    t = layout.tp
    shared = t if layout.sequence_parallel else 1
    drop = 1.0 if layout.dropout else 0.0
    h = model.hidden
    inner = _inner(model)
    element = _element_bytes(layout)
    outside = tokens * h * (4 * element + 2 * drop) / shared  # inputs of two norms, two residuals
    projections = tokens * element * (model.q_width + model.v_width + model.kv_width) / t
    block = tokens * inner * element * (3 if model.gated else 2) / t
    scores: Number = 0.0
    if not layout.fused_attention and layout.recompute != "selective":
        scores = layout.microbatch * model.heads / t * model.seq**2 * (2 * element + drop)
    return outside + projections + block + scores
