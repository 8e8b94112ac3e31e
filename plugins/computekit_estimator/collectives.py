"""Time of collectives, by network level.

Rings: an all-reduce of S bytes over n ranks moves 2 (n-1)/n S through each rank's link, a gather or scatter half of it.
A group inside one node uses the node's links; a group across nodes uses the network, of which each device has its own
share: rings over nodes run side by side, while ranks that share a node exchange over the node's links.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .constants import CONSTANTS, Constants

if TYPE_CHECKING:
    from .hardware import Gpu

Number = Any


def gather(gpu: Gpu, size: Number, ranks: Number, neighbours: Number, constants: Constants = CONSTANTS) -> Number:
    """All-gather or reduce-scatter of ``size`` bytes (the whole) over ``ranks``, ``neighbours`` of which share a node.

    ``neighbours`` = ranks means that the group stays inside a node.
    """
    size, ranks, neighbours = (np.asarray(x, dtype=float) for x in (size, ranks, neighbours))
    inside = np.minimum(ranks, neighbours)
    nodes = np.maximum(ranks / inside, 1.0)
    node_rate = gpu.node_rate * constants.node_link
    network_rate = gpu.network_rate * constants.network
    # Each of the `inside` ranks of a node carries its share of the ring over nodes on its own adapter.
    across = size * (nodes - 1) / nodes / (inside * network_rate) + constants.network_message_s * np.log2(nodes)
    within = size * (inside - 1) / inside / node_rate + constants.message_s * np.log2(inside)
    # The two levels are pipelined: the slower one sets the time.
    return np.where(ranks > 1, np.maximum(across, within), 0.0)


def all_reduce(gpu: Gpu, size: Number, ranks: Number, neighbours: Number, constants: Constants = CONSTANTS) -> Number:
    """All-reduce of ``size`` bytes: a reduce-scatter and an all-gather."""
    return 2.0 * gather(gpu, size, ranks, neighbours, constants)


def all_to_all(
    gpu: Gpu, size: Number, ranks: Number, neighbours: Number, constants: Constants = CONSTANTS, copies: int = 0
) -> Number:
    """Every rank spreads its own ``size`` bytes evenly over ``ranks``, ``neighbours`` of which share a node.

    With ``copies`` of each row to spread, a node gets a row once, however many of its ranks want it.
    """
    size, ranks, neighbours = (np.asarray(x, dtype=float) for x in (size, ranks, neighbours))
    inside = np.minimum(ranks, neighbours)
    nodes = ranks / inside
    leaving = 1 - 1 / nodes
    if copies:  # distinct nodes among so many even choices
        leaving = leaving * nodes * (1 - leaving**copies) / copies
    across = size * leaving / (gpu.network_rate * constants.network)
    within = size * (inside - 1) / ranks / (gpu.node_rate * constants.node_link)
    latency = constants.message_s * np.log2(inside) + constants.network_message_s * (nodes > 1)
    return np.where(ranks > 1, np.maximum(across, within) + latency, 0.0)


def send(gpu: Gpu, size: Number, same_node: Number, constants: Constants = CONSTANTS) -> Number:
    """Point-to-point transfer of ``size`` bytes to a neighbour stage."""
    rate = np.where(same_node, gpu.node_rate * constants.node_link, gpu.network_rate * constants.network)
    return size / rate + np.where(same_node, constants.message_s, constants.network_message_s)
