"""Which layers of a module become one integer kernel with what follows them, and which values stay integers in between.

A layer takes in the BatchNorm, the residual sum and the activation function that follow it where nothing else looks at
the value in between. A result stays in integers where another integer layer takes it, directly or through operations
that only move or choose values; all others get floats. This follows from the code and from which layers are quantized,
not from any data, so calibration and loading arrive at the same plan.

Importing this imports torch.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn

from .int8_static import LINEAR_ONLY, Activation
from .int8_trace import trace

_Targets = frozenset[str | Callable[..., Any]]

_MOVES: _Targets = frozenset({
    "chunk", "contiguous", "expand", "flatten", "permute", "reshape", "split", "squeeze", "transpose", "unbind",
    "unflatten", "unsqueeze", "view", torch.chunk, torch.flatten, torch.permute, torch.reshape, torch.split,
    torch.squeeze, torch.transpose, torch.unbind, torch.unflatten, torch.unsqueeze, operator.getitem, F.pixel_shuffle,
    F.channel_shuffle,
})  # fmt: skip
_MOVING = (nn.Flatten, nn.Unflatten, nn.PixelShuffle, nn.ChannelShuffle)
_AVERAGES: _Targets = frozenset({F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, torch.mean, "mean"})
_AVERAGING = (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d)
_MAXIMA: _Targets = frozenset({F.max_pool1d, F.max_pool2d})
_RELUS: _Targets = frozenset({F.relu, torch.relu, torch.relu_, "relu", "relu_"})
_SUMS: _Targets = frozenset({operator.add, operator.iadd, torch.add, "add", "add_"})
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_SHAPE_METHODS = frozenset({"size", "dim", "numel"})
_SHAPE_ATTRIBUTES = frozenset({"shape", "ndim"})


@dataclass
class Fusion:
    """One kernel: ``nodes`` of the graph, the layer first and the value that the kernel gives last.

    ``addend`` is the node whose value is added to the layer's, by the node ``sum``. ``in_integers`` is whether the
    result stays in integers.
    """

    name: str
    nodes: list[fx.Node]
    norm: Any = None  # a BatchNorm, or what has its tensors
    sum: fx.Node | None = None
    addend: fx.Node | None = None
    activation: Activation = field(default_factory=Activation)
    in_integers: bool = False

    @property
    def input(self) -> fx.Node:
        return self.nodes[0].all_input_nodes[0]

    @property
    def last(self) -> fx.Node:
        return self.nodes[-1]

    def drop_sum(self) -> None:
        """Leave the sum, and what follows it, to others."""
        assert self.sum is not None
        self.nodes = self.nodes[: self.nodes.index(self.sum)]
        self.sum, self.addend, self.activation = None, None, Activation()


class Plan:
    """The plan for ``module``; ``layers`` are the paths of those that compute in integers.

    Their values say whether the layer may give integers; calibration lets all of them.
    """

    def __init__(self, module: nn.Module, layers: Mapping[str, bool]) -> None:
        """Raises Untraceable."""
        self.graph, self.constants = trace(module)
        self.modules = dict(module.named_modules(remove_duplicate=False))
        self.layers = layers
        self.fusions: dict[fx.Node, Fusion] = {}
        """By the node of the layer."""
        self._sums: dict[fx.Node, Fusion] = {}
        self._wanted: dict[fx.Node, bool] = {}
        self._joined: dict[fx.Node, bool] = {}
        for node in self.graph.nodes:
            if node.op == "call_module" and node.target in layers and len(node.all_input_nodes) == 1:
                self.fusions[node] = self._grow(node)
        self._settle()

    def sites(self) -> Iterator[tuple[str, fx.Node, fx.Node]]:
        """What calibration looks at: a layer, its input and its result.

        An input that is a moved or chosen part of a value in integers is given as that value: they share a grid.
        """
        for fusion in self.fusions.values():
            source = self._source(fusion.input)
            yield fusion.name, source if self._in_integers(source) else fusion.input, fusion.last

    def shared(self) -> Iterator[list[fx.Node]]:
        """Values that are concatenated as integers, and what comes of it: all have to share a grid."""
        for node in self.graph.nodes:
            if node.target is torch.cat and self._in_integers(node):
                yield [*map(self._source, node.all_input_nodes), node]

    def by_result(self) -> dict[fx.Node, Fusion]:
        """Fusions by the node of the value that they give."""
        return {fusion.last: fusion for fusion in self.fusions.values()}

    # How operations treat integers

    def moves(self, node: fx.Node) -> bool:
        """Whether ``node`` gives values of its input, or a choice of them, and nothing else."""
        if self.is_max_pool(node) or self.is_relu(node):
            return True
        if node.op == "call_module":
            return isinstance(self.modules[str(node.target)], _MOVING)
        return node.target in _MOVES

    def is_relu(self, node: fx.Node) -> bool:
        return node.target in _RELUS or (
            node.op == "call_module" and isinstance(self.modules[str(node.target)], nn.ReLU)
        )

    def is_max_pool(self, node: fx.Node) -> bool:
        """Whether ``node`` is max pooling in one or two dimensions."""
        if node.op == "call_module":
            module = self.modules[str(node.target)]
            return isinstance(module, (nn.MaxPool1d, nn.MaxPool2d)) and not module.return_indices
        return node.target in _MAXIMA and not node.kwargs.get("return_indices")

    def averages(self, node: fx.Node) -> bool:
        """Whether ``node`` averages: the scale may be applied to its result instead of its input."""
        if node.op == "call_module":
            return isinstance(self.modules[str(node.target)], _AVERAGING)
        return node.target in _AVERAGES

    def averages_all(self, node: fx.Node) -> bool:
        """Whether ``node`` averages over all places of an image."""
        if node.op == "call_module":
            module = self.modules[str(node.target)]
            return isinstance(module, nn.AdaptiveAvgPool2d) and module.output_size in (1, (1, 1))
        size = node.kwargs.get("output_size", node.args[1] if len(node.args) > 1 else None)
        return node.target is F.adaptive_avg_pool2d and size in (1, (1, 1), [1, 1])

    @staticmethod
    def asks_shape(node: fx.Node) -> bool:
        """Whether ``node`` reads only the shape of its input."""
        if node.op == "call_method":
            return node.target in _SHAPE_METHODS
        return node.target is getattr and node.args[1] in _SHAPE_ATTRIBUTES

    # What is fused

    def _grow(self, node: fx.Node) -> Fusion:
        fusion = Fusion(str(node.target), [node])
        layer = self.modules[fusion.name]
        user = _only_user(node)
        fusion.norm = None if user is None or isinstance(layer, nn.Linear) else self._norm(user)
        if user is not None and fusion.norm is not None:
            fusion.nodes.append(user)
            user = _only_user(user)
        if user is None:
            return fusion
        activation = self._activation(user, layer)
        if activation is not None:
            fusion.nodes.append(user)
            fusion.activation = activation
        elif self._sums_up(user, fusion):
            fusion.sum = user
            fusion.addend = next(other for other in user.all_input_nodes if other is not fusion.last)
            fusion.nodes.append(user)
            self._sums[user] = fusion
            user = _only_user(user)
            if user is not None and self.is_relu(user):
                fusion.nodes.append(user)
                fusion.activation = Activation("relu")
        return fusion

    def _norm(self, node: fx.Node) -> Any:
        """The BatchNorm that ``node`` applies to channels, None for anything else. After a linear layer it is not asked
        for: the axis may be another there."""
        if node.op == "call_module":
            module = self.modules[str(node.target)]
            return module if isinstance(module, _NORMS) and module.running_mean is not None else None
        if node.target is not F.batch_norm:
            return None
        names = ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")
        given = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
        tensors = {name: self._attribute(given.get(name)) for name in names[1:5]}
        fits = not given.get("training") and tensors["running_mean"] is not None
        return SimpleNamespace(**tensors, eps=given.get("eps", 1e-5)) if fits else None

    def _attribute(self, node: Any) -> torch.Tensor | None:
        """The tensor of a module that ``node`` reads."""
        if not isinstance(node, fx.Node) or node.op != "get_attr":
            return None
        owner, _, name = str(node.target).rpartition(".")
        found = self.constants.get(str(node.target))
        return getattr(self.modules[owner], name) if found is None else found

    def _sums_up(self, node: fx.Node, fusion: Fusion) -> bool:
        """Whether ``node`` adds another value to the result of a convolution in one or two dimensions, once."""
        two = len(node.args) == 2 and len(node.all_input_nodes) == 2 and not node.kwargs
        kernel = isinstance(self.modules[fusion.name], (nn.Conv1d, nn.Conv2d))
        return node.target in _SUMS and two and kernel and node not in self._sums

    def _activation(self, node: fx.Node, layer: nn.Module) -> Activation | None:
        """The function that ``node`` applies, if the kernel of ``layer`` has it."""
        if isinstance(layer, nn.Conv3d):
            return None
        found = _of_module(self.modules[str(node.target)]) if node.op == "call_module" else _of_call(node)
        return None if found is None or (not isinstance(layer, nn.Linear) and found.name in LINEAR_ONLY) else found

    # What stays in integers

    def _settle(self) -> None:
        """From the last node to the first, so that what the users of a value do is known before it is decided."""
        for node in reversed(self.graph.nodes):
            self._wanted[node] = self._is_wanted(node)
            for fusion in [fusion for fusion in self.fusions.values() if fusion.last is node]:
                fusion.in_integers = self.layers[fusion.name] and self._wanted[node]
                if fusion.addend is None or (fusion.in_integers and self._can_be_integers(fusion.addend)):
                    continue
                self._sums = {node: other for node, other in self._sums.items() if other is not fusion}
                fusion.drop_sum()

    def _is_wanted(self, node: fx.Node) -> bool:
        """Whether integers are of use to those that take the value of ``node``.

        Some layer must take them, or all users average them, which makes up for the rounding.
        """
        users = [user for user in node.users if not self.asks_shape(user)]
        if any(user.op == "output" for user in users) or not users:
            return False
        return any(self._takes(user, node) for user in users) or all(self.averages(user) for user in users)

    def _takes(self, user: fx.Node, node: fx.Node) -> bool:
        if user in self.fusions:
            return True
        if user in self._sums and self._sums[user].addend is node:
            return self._sums[user].in_integers
        return (self.moves(user) or user.target is torch.cat) and self._wanted[user]

    def _can_be_integers(self, node: fx.Node) -> bool:
        """Whether the value of ``node`` will have a grid: it is the result or the input of an integer layer."""
        source = self._source(node)
        fusion = self.by_result().get(source)
        if fusion is not None:
            return self.layers[fusion.name] and not any(user.op == "output" for user in source.users)
        return any(user in self.fusions for user in node.users)

    def _in_integers(self, source: fx.Node) -> bool:
        """Whether a `_source` is in integers, once all is settled."""
        fusion = self.by_result().get(source)
        if fusion is not None:
            return fusion.in_integers
        if source.target is not torch.cat or not self._wanted[source]:
            return False
        if source not in self._joined:
            self._joined[source] = all(self._in_integers(self._source(part)) for part in source.all_input_nodes)
        return self._joined[source]

    def _source(self, node: fx.Node) -> fx.Node:
        """The value that ``node`` is a moved or chosen part of, ``node`` itself if it is none."""
        results = self.by_result()
        while node not in results and self.moves(node):
            node = node.all_input_nodes[0]
        return node


def _only_user(node: fx.Node) -> fx.Node | None:
    return next(iter(node.users)) if len(node.users) == 1 else None


def _of_module(module: nn.Module) -> Activation | None:
    match module:
        case nn.ReLU6():  # before Hardtanh, its base
            return Activation("hardtanh", (0.0, 6.0))
        case nn.Hardtanh():
            return Activation("hardtanh", (float(module.min_val), float(module.max_val)))
        case nn.ReLU():
            return Activation("relu")
        case nn.Hardswish():
            return Activation("hardswish")
        case nn.SiLU():
            return Activation("swish")
        case nn.GELU():
            return Activation("gelu", (), module.approximate)
    return None


def _of_call(node: fx.Node) -> Activation | None:
    target = node.target
    if target in _RELUS:
        return Activation("relu")
    if target is F.relu6:
        return Activation("hardtanh", (0.0, 6.0))
    if target is F.hardswish:
        return Activation("hardswish")
    if target is F.silu:
        return Activation("swish")
    if target is F.gelu:
        return Activation("gelu", (), str(node.kwargs.get("approximate", "none")))
    return None
