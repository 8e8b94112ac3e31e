"""Time of one training step: pipeline of microbatches, embedding and logits, gradients, weights, optimizer.

One-forward-one-backward schedules (Narayanan et al. 2021, arXiv:2104.04473): every stage works off all microbatches and
waits (p - 1) slots while the pipeline fills and drains, (p - 1) / v with v interleaved chunks. Between two chunks there
is time to send; without them, or in software that does not overlap, every transfer shows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from . import collectives, gemm, layer
from .constants import CONSTANTS, Constants
from .hardware import Gpu
from .layout import Layout
from .transformer import Transformer

Number = Any


@dataclass
class StepTime:
    """Seconds of one step on the slowest rank, by cause; they add up to ``total``.

    ``bubble`` is waiting for other stages: while the pipeline fills and drains, and because the last stage has the
    logits to do or stages hold unequal numbers of layers. ``logits`` is theirs without a pipeline.
    """

    products: Number
    attention: Number
    elementwise: Number
    recompute: Number
    logits: Number
    tensor_comm: Number
    pipeline_comm: Number
    bubble: Number
    data_comm: Number
    optimizer: Number
    host: Number

    @property
    def total(self) -> Number:
        """The whole step."""
        return sum(vars(self).values())


def step(model: Transformer, layout: Layout, gpu: Gpu, constants: Constants = CONSTANTS) -> StepTime:
    """Time of one step of ``layout.global_batch`` sequences."""
    c = constants
    fwd, bwd = layer.forward(model, layout, gpu, c), layer.backward(model, layout, gpu, c)
    again = layer.recompute(model, layout, gpu, c)
    host = _host(layout, c)
    per_layer = fwd.total + bwd.total + again + host
    most, first, last = layout.stage_layers(model.layers)
    embed, head = _embedding(model, layout, gpu, c), _logits(model, layout, gpu, c)
    single = layout.pp == 1
    ends = np.where(single, embed + head, 0.0)
    stage_first, stage_last = first * per_layer + embed, last * per_layer + head
    slowest = np.maximum(np.maximum(stage_first, stage_last), most * per_layer + ends)
    between = np.where(layout.pp > 2, model.layers - first - last, 0.0) * per_layer
    one_pass = np.where(single, slowest, stage_first + stage_last + between)
    m = layout.microbatches
    bubble = (one_pass - slowest) / layout.vp
    hop = _hop(model, layout, gpu, c)
    exposed = np.where(np.logical_and(layout.overlap, np.asarray(layout.vp) > 1), 0.0, m * layout.vp)
    transfers = np.where(single, 0.0, 2.0 * hop * (exposed + (layout.pp - 1)))
    busy = m * slowest
    base = m * np.where(single, most, np.minimum(most, model.layers / layout.pp))
    spread = _data_parallel(model, layout, gpu, c, busy * fwd.total / per_layer, busy * (bwd.total + again) / per_layer)
    return StepTime(
        products=base * (fwd.products + bwd.products),
        attention=base * (fwd.attention + bwd.attention),
        elementwise=base * (fwd.elementwise + bwd.elementwise),
        recompute=base * again,
        logits=m * np.where(single, ends, 0.0),
        tensor_comm=base * (fwd.comm + bwd.comm),
        pipeline_comm=transfers,
        bubble=bubble + busy - base * per_layer - m * np.where(single, ends, 0.0),
        data_comm=spread,
        optimizer=_optimizer(model, layout, gpu, c),
        host=base * host,
    )


def _host(layout: Layout, c: Constants) -> Number:
    """Host time that blocking launches leave visible; tensor-parallel ranks wait for the slowest of them.

    The expected maximum of n normal deviates is close to sqrt(2 ln n).
    """
    if not layout.blocking:
        return 0.0
    return c.host_s + c.straggler_s * np.sqrt(2 * np.log(layout.tp))


def _logits(model: Transformer, layout: Layout, gpu: Gpu, c: Constants) -> Number:
    """Output projection and cross-entropy, forward and backward, of one microbatch."""
    tokens = layout.microbatch * model.seq / layout.cp
    columns = np.ceil(model.vocab / layout.tp / 64) * 64  # vocabularies are padded
    precision = "bf16" if layout.precision in ("fp4", "fp8") else layout.precision
    products = sum(
        gemm.seconds(gpu, precision, m, n, k, constants=c)
        for m, n, k in (
            (tokens, columns, model.hidden),
            (tokens, model.hidden, columns),
            (model.hidden, columns, tokens),
        )
    )
    # fp32 copy, maximum, exponential and sum, gradient: read and written about eight times; compiled, read three times
    # in half precision and overwritten with the gradient
    traffic, kernels = (8.0, 3) if layout.compiled_loss else (26.0, 8)
    return products + gemm.elementwise(gpu, traffic * tokens * columns, kernels, c)


def _embedding(model: Transformer, layout: Layout, gpu: Gpu, c: Constants) -> Number:
    tokens = layout.microbatch * model.seq / layout.cp
    return gemm.elementwise(gpu, 10.0 * tokens * model.hidden, 6, c)


def _hop(model: Transformer, layout: Layout, gpu: Gpu, c: Constants) -> Number:
    """Activations of one microbatch to the next stage; tensor-parallel ranks send one part each and gather it."""
    tokens = layout.microbatch * model.seq / layout.cp
    size = 2.0 * tokens * model.hidden
    inside = layout.tp * layout.cp * layout.dp * layout.pp <= gpu.node_gpus
    gather = collectives.gather(gpu, size, layout.tp, np.minimum(layout.tp, gpu.node_gpus), c)
    return collectives.send(gpu, size / layout.tp, inside, c) + np.where(layout.sequence_parallel, 0.0, gather)


def layer_weights(model: Transformer, layout: Layout) -> Number:
    """Weights of an average layer on one rank; expert parallelism splits the routed experts."""
    return (model.common_layer_params + model.routed_layer_params / layout.ep) / layout.tp


def rank_parameters(model: Transformer, layout: Layout) -> Number:
    """Weights of the fullest rank before any sharding over data parallelism."""
    most, first, _ = layout.stage_layers(model.layers)
    per_layer = layer_weights(model, layout)
    ends = (model.embedding_params + model.head_params) / layout.tp
    return np.where(layout.pp == 1, most * per_layer + ends, np.maximum(most * per_layer, first * per_layer + ends))


def _neighbours(layout: Layout, gpu: Gpu) -> Number:
    """Ranks of one group of replicas that share a node and its adapters."""
    if not layout.rails:
        return np.where(layout.tp * layout.replicas <= gpu.node_gpus, layout.replicas, 1)
    return np.minimum(np.maximum(gpu.node_gpus // layout.tp, 1), layout.replicas)


_COPIES = 8.0
"""Bytes of a sharded weight that one forward and backward pass moves between what is gathered and the tensors that
are used: halves are read and written twice."""


def _data_parallel(
    model: Transformer, layout: Layout, gpu: Gpu, c: Constants, forward: Number, backward: Number
) -> Number:
    """Exposed communication of gradients and, where they are sharded, weights.

    What ``forward`` and ``backward`` seconds of computation do not hide, and what of the rest they pay for: weights of
    the next layer are gathered, and gradients of the last one reduced, while a layer computes.
    """
    weights = rank_parameters(model, layout)
    ranks, near = layout.replicas, _neighbours(layout, gpu)

    def gathered(bytes_each: float) -> Number:
        return collectives.gather(gpu, bytes_each * weights, ranks, near, c)

    m = layout.microbatches
    gather, scatter = gathered(2.0), gathered(layout.gradient_bytes)
    start = (gather + scatter) / model.layers
    again: Number = 0.0
    if layout.sharding == "zero3":
        # layer by layer, each time around the ring of all nodes, for the forward and for the backward pass; a pipeline
        # keeps what it gathered for all microbatches of the step
        most, _, _ = layout.stage_layers(model.layers)
        once = c.network_message_s * (np.maximum(ranks / near, 1) - 1) * most
        passes = np.where(layout.pp > 1, 1, m)
        gather, scatter = passes * (gather + once), passes * (scatter + once)
        again = np.where(layout.pp > 1, 0.0, gather)
        start = start + gemm.elementwise(gpu, _COPIES * weights * passes, 0, c)
    elif layout.sharding == "zero2":
        scatter = scatter * m
    else:
        if layout.sharding == "none":
            gather = gathered(layout.gradient_bytes)
        forward, backward = forward / m, backward / m  # the next step's first pass and the last one's
    if not layout.overlap:
        return gather + again + scatter
    wait = c.gather_wait if layout.sharding == "zero3" else c.contention
    shown = np.maximum(gather - forward, wait * gather)
    shown = shown + np.maximum(again + scatter - backward, wait * again + c.contention * scatter)
    return np.where(ranks > 1, shown + start, 0.0)


def _optimizer(model: Transformer, layout: Layout, gpu: Gpu, c: Constants) -> Number:
    """Adam on the weights that this rank updates: unscale, norm, clip, update, copy back: about 50 bytes a weight."""
    weights = rank_parameters(model, layout)
    share = layout.replicas if layout.sharding != "none" else 1
    return gemm.elementwise(gpu, 50.0 * weights / share, 10, c)
