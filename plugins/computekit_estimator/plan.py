"""Search for the fastest parallel layout that fits in memory, over arrays of layouts at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from itertools import product
from typing import Any

import numpy as np

from . import memory, time
from .constants import CONSTANTS, Constants
from .divisors import divisors
from .hardware import Gpu
from .layout import Layout, Recompute, Sharding, fills, wants_slots
from .transformer import Transformer

NUMBERS = ("tp", "pp", "cp", "ep", "dp", "vp", "microbatch", "global_batch")
RECOMPUTE: tuple[Recompute, ...] = ("none", "operators", "full")
SHARDING: tuple[Sharding, ...] = ("none", "zero1", "zero3")


@dataclass(frozen=True)
class Choice:
    """A layout with its predicted step time (s) and memory of the fullest rank (bytes)."""

    layout: Layout
    step_s: float
    memory_bytes: float


@dataclass(frozen=True)
class Plan:
    """The fastest layouts that fit, best first; how many were tried and how many of them fit."""

    choices: tuple[Choice, ...]
    tried: int
    fitting: int
    smallest_bytes: float


def search(
    model: Transformer, gpu: Gpu, num_gpus: int, global_batch: int, precision: str = "bf16", keep: int = 5,
    constants: Constants = CONSTANTS, recompute: tuple[Recompute, ...] = RECOMPUTE,
    sharding: tuple[Sharding, ...] = SHARDING, base: Layout | None = None,
) -> Plan:  # fmt: skip
    """Try every layout of ``num_gpus`` devices that can run and keep the ``keep`` fastest that fit.

    Attention is fused (which leaves nothing to selective recomputation), communication overlapped, and sequence
    parallelism on wherever there is tensor parallelism.
    What ``base`` says beyond sizes, precision, recomputation and sharding holds for all of them.
    Runners-up differ in tp, pp, cp, ep, recomputation or sharding.
    """
    found: list[Choice] = []
    tried = fitting = 0
    smallest = np.inf
    for layout in _grids(model, gpu, num_gpus, global_batch, precision, base or Layout(), product(recompute, sharding)):
        needed = np.asarray(memory.training(model, layout, gpu).total, dtype=float)
        tried += needed.size
        smallest = min(smallest, float(needed.min()))
        fits = needed <= gpu.memory_bytes
        if not fits.any():
            continue
        fitting += int(fits.sum())
        chosen = _take(layout, fits)
        seconds = np.broadcast_to(np.asarray(time.step(model, chosen, gpu, constants).total, dtype=float), fits.sum())
        seen: set[tuple[Any, ...]] = set()
        for i in np.argsort(seconds, kind="stable"):
            choice = Choice(_take(chosen, int(i)), float(seconds[i]), float(needed[fits][i]))
            split = (choice.layout.tp, choice.layout.pp, choice.layout.cp, choice.layout.ep)
            if split not in seen:  # interleaving and microbatch alone make no runner-up
                seen.add(split)
                found.append(choice)
            if len(seen) == keep:
                break
    found.sort(key=lambda choice: (choice.step_s, choice.memory_bytes))
    return Plan(tuple(found[:keep]), tried, fitting, smallest)


def _grids(
    model: Transformer,
    gpu: Gpu,
    num_gpus: int,
    global_batch: int,
    precision: str,
    base: Layout,
    ways: Iterable[tuple[Recompute, Sharding]],
) -> Iterator[Layout]:
    """Arrays of layouts, one for each combination of recomputation, sharding and tensor parallelism or none."""
    numbers = _numbers(model, gpu, num_gpus, global_batch)
    ways = list(ways)
    for parallel in (False, True):
        rows = numbers[(numbers[:, 0] > 1) == parallel]
        if not rows.size:
            continue
        columns = dict(zip(NUMBERS, rows.T, strict=True))
        for recompute, sharding in ways:
            yield replace(
                base,
                **columns,
                precision=precision,
                recompute=recompute,
                sharding=sharding,
                sequence_parallel=parallel,
                gradient_bytes=4.0 if sharding == "zero1" else 2.0,
                async_gradients=sharding == "zero1",
                slots=wants_slots(model.layers, columns["pp"]),
            )


def _numbers(model: Transformer, gpu: Gpu, num_gpus: int, global_batch: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """All combinations of tp, pp, cp, ep, dp, vp, microbatch and global batch that divide as they must."""
    tensor = [t for t in divisors(num_gpus) if t <= gpu.node_gpus and model.heads % t == 0 and model.ffn % t == 0]
    context = [c for c in (1, 2, 4, 8, 16) if c == 1 or (model.seq // c >= 4096 and model.seq % c == 0)]
    expert = divisors(model.experts) if model.experts else [1]
    rows = []
    for t, c, e in product(tensor, context, expert):
        for p in divisors(num_gpus // t):
            ranks = t * c * p
            if num_gpus % ranks or not fills(model.layers, p):
                continue
            d = num_gpus // ranks
            if global_batch % d or d % e:
                continue
            per_rank = global_batch // d
            chunks = [v for v in divisors(-(-model.layers // p)) if p > 1 and model.layers % (p * v) == 0] or [1]
            for micro, v in product(divisors(per_rank, 64), chunks):
                if v == 1 or (per_rank // micro) % p == 0:
                    rows.append((t, p, c, e, d, v, micro, global_batch))
    return np.array(rows, dtype=np.int64).reshape(-1, len(NUMBERS))


def _take(layout: Layout, which: Any) -> Layout:
    """The layouts of a grid that an index or a mask picks."""
    picked: dict[str, Any] = {}
    for field in fields(layout):
        value = getattr(layout, field.name)
        if isinstance(value, np.ndarray):
            value = value[which]
            picked[field.name] = value if isinstance(value, np.ndarray) else value.item()
    return replace(layout, **picked)
