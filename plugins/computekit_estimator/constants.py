"""The constants of the model: few, physical, the same for every model, layout and run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Constants:
    """Shares are 0..1 of a nominal rate; times in seconds."""

    sustained_until_2022: float = 0.779
    """Share of the tensor peak that clocks sustain in large products, parts before 2022 (Volta, Ampere)."""
    sustained_fixed: float = 0.95
    """The same of parts whose peak is at the clock they always run at (TPUs)."""
    sustained_since_2022: float = 0.65
    """The same since 2022 (Hopper, Ada, Blackwell), whose peak at full clock exceeds the power limit."""
    memory_until_2022: float = 0.755
    """Share of the memory bandwidth that element-wise kernels reach, parts before 2022."""
    memory_since_2022: float = 0.5
    """The same since 2022: more bandwidth needs more bytes in flight than most kernels keep."""
    cache_gain: float = 3.0
    """Rate of the last-level cache over that of the memory."""
    small_products: float = 0.75
    """Share of the sustained rate that convolutions and products of ordinary layers reach."""
    power_exponent: float = 0.8
    """Speed goes with this power of a power limit: power goes with f V^2, and V falls little below its usual value."""
    node_link: float = 0.75
    """Share of the link rate that collectives inside a node reach."""
    network: float = 0.75
    """Share of the network rate that collectives and transfers between nodes reach."""
    kernel_s: float = 6e-6
    """Start and drain of one kernel."""
    message_s: float = 3.2e-6
    """Latency of a gather or scatter inside a node for each doubling of its ranks."""
    network_message_s: float = 25e-6
    """Latency of one transfer between nodes; sharded weights go around a ring of all nodes, layer by layer."""
    tile_overhead_k: float = 80.0
    """Filling and emptying a product tile costs as much as this many steps along k."""
    misaligned: float = 0.06
    """Share of the rate where a row is no multiple of 8 elements (16 bytes): no tensor cores."""
    flash: float = 0.60
    """Share of the sustained rate in fused attention kernels."""
    flash_ramp: float = 1000.0
    """Sequence length at which fused attention reaches half its rate: short ones leave units idle."""
    contention: float = 0.2
    """Share of overlapped reductions that still shows, for they take multiprocessors and bandwidth."""
    gather_wait: float = 0.6
    """The same for weights that are gathered just before they are used (FSDP)."""
    host_s: float = 0.9e-3
    """Host time of one layer's forward, recomputed and backward pass, where launches block."""
    straggler_s: float = 6.1e-3
    """Spread (one standard deviation) of that time among the ranks that then wait for each other."""
    tensor_hidden: float = 0.6
    """Share of tensor-parallel communication that splitting it hides behind the products."""
    stream: float = 0.79
    """Share of the memory rate at which products of few rows stream their weights."""
    dequantise: float = 0.80
    """What is left of that rate where integer weights are unpacked on the way."""
    graph_kernel_s: float = 3.6e-6
    """Start and drain of one kernel of a captured graph."""
    host_sync_s: float = 39e-6
    """Wait for the slowest host at a collective, where kernels are launched one by one."""
    request_s: float = 3e-3
    """Host time of one request: scheduling, copies to the device and back, sampling."""


CONSTANTS = Constants()
