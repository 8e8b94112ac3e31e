"""Which channels go together: a residual path, a layer and its readers, the q, k and v of an attention.

torch-pruning traces the dependencies; this module decides which groups of coupled channels may shrink. Importing it
imports torch; torch-pruning is the extra ``prune``.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from computekit import ComputekitError, MissingExtra

_SHRINKABLE = (
    nn.Linear, nn.modules.conv._ConvNd, nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.RMSNorm, nn.GroupNorm,
    nn.PReLU,
)  # fmt: skip
"""Layers that `computekit.models.shapes` can rebuild at another size."""

_ATTENTION_OPERATIONS = ("ScaledDotProduct", "Softmax", "Bmm")


@dataclass(frozen=True)
class Member:
    """One layer of a coupled group: weights (n, ...) that belong to channels ``roots`` (n,) of the group."""

    weights: Tensor
    roots: Tensor


@dataclass
class Coupled:
    """Channels that can only be removed together, in every layer of the group.

    The channels lie in ``blocks`` equal consecutive blocks (attention heads, groups of a convolution) that must stay
    equally large; with ``alike``, the same places must go in each block.
    """

    name: str
    channels: int
    members: list[Member]
    remove: Callable[[list[int]], None]
    blocks: int = 1
    alike: bool = False


@dataclass(frozen=True)
class Kept:
    """Channels that stay, and why."""

    name: str
    channels: int
    reason: str


@dataclass
class Structure:
    """All groups of coupled channels of a module."""

    groups: list[Coupled] = field(default_factory=list)
    kept: list[Kept] = field(default_factory=list)


def analyse(module: nn.Module, inputs: tuple[Any, ...], keep_attention: bool = False) -> Structure:
    """The coupled channels of ``module``, found by running it once on ``inputs``.

    Kept whole are outputs, embeddings and everything that a residual path ties to them, parameters that no layer owns,
    tied weights, and layers that could not be rebuilt at another size. Attention shrinks its head size, where q, k
    and v are layers of their own; the number of heads stays.

    Raises:
        MissingExtra: torch-pruning is not installed.
        ComputekitError: the module cannot be traced.
    """
    try:
        import torch_pruning
    except ImportError:
        raise MissingExtra("torch-pruning", "prune", "pruning") from None
    module.requires_grad_(True)  # torch-pruning follows the graph of the backward pass
    try:
        with torch.enable_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            graph = torch_pruning.DependencyGraph().build_dependency(module, example_inputs=list(inputs), verbose=False)
            groups = list(graph.get_all_groups(root_module_types=[nn.modules.conv._ConvNd, nn.Linear]))
    except Exception as error:  # running the user's own code, and torch-pruning's assertions about it
        first_line = (str(error).splitlines() or [""])[0]
        raise ComputekitError(f"the model's layers cannot be traced: {type(error).__name__}: {first_line}") from error
    owners = {layer: name for name, layer in module.named_modules()}
    tied = _tied_layers(module)
    structure = Structure()
    for group in groups:
        root = owners[group[0].dep.target.module]
        channels = len(group[0].idxs)
        reason = _why_kept(group, graph, tied)
        if reason:
            structure.kept.append(Kept(root, channels, reason))
            continue
        coupled = Coupled(root, channels, _members(group, graph), group.prune)
        reason = _set_blocks(coupled, group, graph, module, owners, keep_attention)
        if reason:
            structure.kept.append(Kept(root, channels, reason))
        else:
            structure.groups.append(coupled)
    position = {name: place for place, name in enumerate(owners.values())}
    structure.groups.sort(key=lambda group: position[group.name])
    return structure


def _why_kept(group: Any, graph: Any, tied: set[nn.Module]) -> str:
    """Why a group cannot shrink, or an empty string."""
    for dependency, _ in group:
        layer, node = dependency.target.module, dependency.target
        if not node.outputs and graph.is_out_channel_pruning_fn(dependency.handler):
            return "output"
        if isinstance(layer, nn.Parameter):
            return "tied to a parameter that no layer owns"
        if isinstance(layer, nn.Embedding):
            return "tied to an embedding"
        if layer in tied:
            return "tied weights"
        if type(layer).__module__.startswith("torch_pruning"):
            continue
        affine = getattr(layer, "elementwise_affine", True)
        if not isinstance(layer, _SHRINKABLE) or not affine:
            return f"{type(layer).__name__} cannot be rebuilt at another size"
    return ""


def _set_blocks(
    coupled: Coupled, group: Any, graph: Any, module: nn.Module, owners: dict[nn.Module, str], keep_attention: bool
) -> str:
    """Set ``blocks`` and ``alike``; returns why the group must be kept, or an empty string."""
    blocks = {1}
    for dependency, _ in group:
        layer = dependency.target.module
        if isinstance(layer, nn.modules.conv._ConvNd) and layer.groups > 1 and layer.groups != layer.in_channels:
            blocks.add(layer.groups)
            coupled.alike = True
        if isinstance(layer, nn.GroupNorm):
            blocks.add(layer.num_groups)
    if any(operation in d.target.name for d, _ in group for operation in _ATTENTION_OPERATIONS):
        makers = [d.target.module for d, _ in group
                  if isinstance(d.target.module, nn.Linear) and graph.is_out_channel_pruning_fn(d.handler)]  # fmt: skip
        parents = {owners[layer].rpartition(".")[0] for layer in makers}
        sizes = {layer.out_features for layer in makers}
        heads = _heads(module.get_submodule(parents.pop())) if len(parents) == 1 else None
        if keep_attention or heads is None or len(makers) < 3 or len(sizes) > 1:
            return "attention whose code fixes the size of its heads"
        blocks.add(heads)
    coupled.blocks = max(blocks)
    if any(coupled.blocks % other for other in blocks) or coupled.channels % coupled.blocks:
        return "its groups do not fit into each other"
    if coupled.blocks > 1 and any(len(member.roots) != coupled.channels for member in coupled.members):
        return "its groups are read in another order"
    return ""


def _heads(parent: nn.Module) -> int | None:
    """The number of attention heads, which modules keep under various names (heads, num_heads, n_head)."""
    found = {
        value for name, value in vars(parent).items() if "head" in name and "dim" not in name and type(value) is int
    }
    return found.pop() if len(found) == 1 else None


def _members(group: Any, graph: Any) -> list[Member]:
    """The weights of a group's linear layers and convolutions, by channel."""
    members = []
    for item in group:
        layer = item.dep.target.module
        if isinstance(layer, (nn.Linear, nn.modules.conv._ConvNd)):
            makes = graph.is_out_channel_pruning_fn(item.dep.handler)
            weights = _by_channel(layer, makes)[torch.tensor(item.idxs)]
            members.append(Member(weights, torch.tensor(item.root_idxs)))
    return members


def _by_channel(layer: nn.Linear | nn.modules.conv._ConvNd, makes: bool) -> Tensor:
    """The weight as (channels, rest), for the channels that the layer ``makes`` or, otherwise, reads."""
    weight = layer.weight.detach()
    if isinstance(layer, nn.Linear):
        return weight if makes else weight.T
    if makes != layer.transposed:
        return weight.flatten(1)
    # (first, second / groups, ...): the second kind of channel is numbered group by group
    rows: Tensor = weight.reshape(layer.groups, -1, *weight.shape[1:]).transpose(1, 2).flatten(0, 1).flatten(1)
    return rows


def _tied_layers(module: nn.Module) -> set[nn.Module]:
    """Layers that hold a parameter that another place holds too."""
    held = [(layer, parameter) for layer in module.modules() for parameter in layer._parameters.values()
            if parameter is not None]  # fmt: skip
    times = Counter(id(parameter) for _, parameter in held)
    return {layer for layer, parameter in held if times[id(parameter)] > 1}
