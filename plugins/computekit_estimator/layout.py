"""How a training run is spread over devices, and whether that can run at all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from .divisors import near
from .errors import ImpossibleLayout
from .hardware import Gpu
from .transformer import Transformer

Recompute = Literal["none", "selective", "operators", "layers", "full"]
Sharding = Literal["none", "zero1", "zero2", "zero3"]
Number = Any


@dataclass(frozen=True)
class Layout:
    """A parallel layout. The numbers may be numpy arrays of one shape: many layouts at once.

    tp, pp, cp, ep, dp: ranks of tensor, pipeline, context, expert and data parallelism; vp: interleaved model chunks
    of a stage. ``microbatch`` is sequences of one forward pass, ``global_batch`` of one step. ``sharding`` zero1 shards
    the optimizer, zero2 gradients too, zero3 (FSDP) weights too. ``fused_attention`` never writes the score matrix.
    ``overlap`` hides gradient and weight communication behind computation; ``compiled`` fuses element-wise chains;
    ``compiled_loss`` those of the loss, so that logits are never copied to fp32.
    ``rails`` lets a group with several ranks in a node use all their network adapters at once. ``blocking`` launches
    wait for the host after every kernel. ``tensor_overlap`` splits tensor-parallel collectives to hide them.
    ``expert_overlap`` runs two microbatches at once so that tokens travel to their experts while the other computes
    (DualPipe, arXiv:2412.19437), and sends a token once to each node.
    ``async_gradients`` sums weight gradients inside their products, which hide the reduction of the input's gradient
    (Megatron-LM since 2022).
    ``slots`` gives embedding and head one layer slot each where stages are cut. ``gradient_bytes`` is the size of an
    element of what is summed and reduced; ``dropout`` writes masks.
    """

    tp: Number = 1
    pp: Number = 1
    cp: Number = 1
    ep: Number = 1
    dp: Number = 1
    vp: Number = 1
    microbatch: Number = 1
    global_batch: Number = 1
    precision: str = "bf16"
    recompute: Recompute = "none"
    sharding: Sharding = "none"
    sequence_parallel: bool = False
    fused_attention: bool = True
    overlap: bool = True
    compiled: bool = False
    compiled_loss: bool = False
    gradient_bytes: float = 2.0
    slots: Any = False
    dropout: bool = False
    rails: bool = True
    blocking: bool = False
    tensor_overlap: bool = False
    expert_overlap: bool = False
    async_gradients: bool = False

    @property
    def num_gpus(self) -> Number:
        """Devices in all; expert parallelism reuses those of data parallelism."""
        return self.tp * self.pp * self.cp * self.dp

    @property
    def replicas(self) -> Number:
        """Ranks that hold the same weights, which sharding splits: those of data and of context parallelism."""
        return self.dp * self.cp

    @property
    def microbatches(self) -> Number:
        """Forward passes of one rank in one step."""
        return self.global_batch / (self.dp * self.microbatch)

    @property
    def hardware_passes(self) -> float:
        """Forward passes' worth of model FLOPs that the hardware really does: three, and what is computed again."""
        return 3.0 + {"full": 1.0, "layers": 0.5, "operators": 0.5}.get(self.recompute, 0.0)

    def stage_layers(self, layers: int) -> tuple[Number, Number, Number]:
        """Layers of the fullest stage, of the first and of the last one."""
        even = np.ceil(layers / self.pp)
        cut = (layers + 2) / self.pp
        slots = np.logical_and(self.slots, np.asarray(self.pp) > 1)
        last = np.maximum(layers - even * (self.pp - 1), 0)
        return np.where(slots, cut, even), np.where(slots, cut - 1, even), np.where(slots, cut - 1, last)


def wants_slots(layers: int, pp: Number) -> Number:
    """Whether stages come out even only if embedding and head take one layer slot each."""
    return (np.asarray(pp) > 1) & (layers % pp != 0) & ((layers + 2) % pp == 0)


def fills(layers: int, pp: int) -> bool:
    """Whether no stage is left without layers when the others take equally many."""
    return bool(wants_slots(layers, pp)) or -(-layers // pp) * (pp - 1) < layers


def check(model: Transformer, layout: Layout, gpu: Gpu) -> None:
    """Refuse a layout that cannot run and name the nearest one that can.

    Raises:
        ImpossibleLayout: sizes do not divide.
    """
    tp, pp, vp = int(layout.tp), int(layout.pp), int(layout.vp)
    if model.heads % tp:
        raise ImpossibleLayout(
            f"tp={tp} does not divide {model.heads} heads; the nearest is tp={near(model.heads, tp)}"
        )
    if model.ffn % tp:
        raise ImpossibleLayout(
            f"tp={tp} does not divide the feed-forward width {model.ffn}; take tp={near(model.ffn, tp)}"
        )
    if vp > 1 and pp < 2:
        raise ImpossibleLayout(f"vp={vp} interleaves pipeline stages, and pp={pp}; take vp=1 or pp=2")
    if pp * vp > model.layers:
        raise ImpossibleLayout(f"pp={pp} x vp={vp} is more stages than the model's {model.layers} layers; "
                               f"take at most pp={max(model.layers // vp, 1)}")  # fmt: skip
    if not fills(model.layers, pp):
        raise ImpossibleLayout(f"pp={pp} leaves a stage without any of the {model.layers} layers; "
                               f"take pp={near(model.layers, pp)}")  # fmt: skip
    if model.experts and model.experts % int(layout.ep):
        raise ImpossibleLayout(f"ep={layout.ep} does not divide {model.experts} experts; "
                               f"the nearest is ep={near(model.experts, int(layout.ep))}")  # fmt: skip
    if int(layout.ep) > 1 and not model.experts:
        raise ImpossibleLayout(f"ep={layout.ep} needs a mixture of experts; this model has none, take ep=1")
    if int(layout.dp) % int(layout.ep):
        raise ImpossibleLayout(
            f"ep={layout.ep} does not divide dp={layout.dp}; take ep={near(int(layout.dp), int(layout.ep))}"
        )
    if model.seq % int(layout.cp):
        raise ImpossibleLayout(
            f"cp={layout.cp} does not divide seq={model.seq}; take cp={near(model.seq, int(layout.cp))}"
        )
    per_rank = int(layout.global_batch) / int(layout.dp)
    if int(layout.global_batch) % int(layout.dp):
        low = int(layout.global_batch) // int(layout.dp) * int(layout.dp)
        raise ImpossibleLayout(f"global batch {layout.global_batch} is no multiple of dp={layout.dp}; take "
                               f"{low or layout.dp}")  # fmt: skip
    if int(per_rank) % int(layout.microbatch):
        raise ImpossibleLayout(f"microbatch {layout.microbatch} does not divide the {int(per_rank)} sequences of each "
                               f"rank; take microbatch {near(int(per_rank), int(layout.microbatch))}")  # fmt: skip
    if vp > 1 and int(layout.microbatches) % pp:
        raise ImpossibleLayout(f"interleaving needs the {int(layout.microbatches)} microbatches to be a multiple of "
                               f"pp={pp}; change the global batch or take vp=1")  # fmt: skip
