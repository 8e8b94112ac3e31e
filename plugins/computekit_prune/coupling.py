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
    """One layer of a coupled group, which ``makes`` the channels or reads them.

    Its channels ``places`` (n,) belong to the channels ``roots`` (n,) of the group; ``weights`` (n, m) are theirs, and
    ``gradients`` (n, m) where the module has any.
    """

    layer: str
    makes: bool
    places: Tensor
    roots: Tensor
    weights: Tensor
    gradients: Tensor | None = None


@dataclass
class Coupled:
    """Channels that can only be removed together, in every layer of the group.

    The channels lie in ``blocks`` equal consecutive blocks (attention heads, groups of a convolution) that must stay
    equally large; with ``alike``, the same places must go in each block. Where ``exact``, removing channels is the same
    as reading zeros from them; it is not where a norm or a softmax looks at all channels together.
    """

    name: str
    channels: int
    members: list[Member]
    remove: Callable[[list[int]], None]
    blocks: int = 1
    alike: bool = False
    exact: bool = True


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


def analyse(module: nn.Module, inputs: tuple[Any, ...]) -> Structure:
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
    names = {layer: name for name, layer in module.named_modules()}
    tied = _tied_layers(module)
    structure = Structure()
    for group in groups:
        root = names[group[0].dep.target.module]
        channels = len(group[0].idxs)
        coupled = Coupled(root, channels, [], group.prune)
        reason = _why_kept(group, graph, tied)
        reason = (
            reason or _set_members(coupled, group, graph, names) or _set_blocks(coupled, group, graph, module, names)
        )
        if reason:
            structure.kept.append(Kept(root, channels, reason))
        else:
            structure.groups.append(coupled)
    position = {name: place for place, name in enumerate(names.values())}
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


def _set_blocks(coupled: Coupled, group: Any, graph: Any, module: nn.Module, names: dict[nn.Module, str]) -> str:
    """Set ``blocks``, ``alike`` and ``exact``; returns why the group must be kept, or an empty string."""
    blocks = {1}
    for dependency, _ in group:
        layer = dependency.target.module
        if isinstance(layer, nn.modules.conv._ConvNd) and layer.groups > 1 and layer.groups != layer.in_channels:
            blocks.add(layer.groups)
            coupled.alike, coupled.exact = True, False
        if isinstance(layer, nn.GroupNorm):
            blocks.add(layer.num_groups)
        if isinstance(layer, (nn.LayerNorm, nn.RMSNorm, nn.GroupNorm)):
            coupled.exact = False
    if any(operation in d.target.name for d, _ in group for operation in _ATTENTION_OPERATIONS):
        makers = [d.target.module for d, _ in group
                  if isinstance(d.target.module, nn.Linear) and graph.is_out_channel_pruning_fn(d.handler)]  # fmt: skip
        parents = {names[layer].rpartition(".")[0] for layer in makers}
        sizes = {layer.out_features for layer in makers}
        heads = _heads(module.get_submodule(parents.pop())) if len(parents) == 1 else None
        if heads is None or len(makers) < 3 or len(sizes) > 1:
            return "attention without a layer each for q, k and v, or whose heads are not known"
        blocks.add(heads)
        coupled.exact = False
    coupled.blocks = max(blocks)
    if any(coupled.blocks % other for other in blocks) or coupled.channels % coupled.blocks:
        return "its groups do not fit into each other"
    return ""


def _heads(parent: nn.Module) -> int | None:
    """The number of attention heads, which modules keep under various names (heads, num_heads, n_head)."""
    found = {
        value for name, value in vars(parent).items() if "head" in name and "dim" not in name and type(value) is int
    }
    return found.pop() if len(found) == 1 else None


def _set_members(coupled: Coupled, group: Any, graph: Any, names: dict[nn.Module, str]) -> str:
    """Set ``members``, the group's linear layers and convolutions; returns why they cannot be followed, or nothing."""
    for item in group:
        layer = item.dep.target.module
        if not isinstance(layer, (nn.Linear, nn.modules.conv._ConvNd)):
            continue
        makes = graph.is_out_channel_pruning_fn(item.dep.handler)
        weights, places = _by_channel(layer, makes, layer.weight.detach()), torch.tensor(item.idxs)
        if int(places.max()) >= len(weights):
            return f"{names[layer]} reads its channels rearranged"
        slope = layer.weight.grad
        gradients = None if slope is None else _by_channel(layer, makes, slope)[places]
        roots = torch.tensor(item.root_idxs)
        coupled.members.append(Member(names[layer], makes, places, roots, weights[places], gradients))
    return ""


def _by_channel(layer: nn.Linear | nn.modules.conv._ConvNd, makes: bool, weight: Tensor) -> Tensor:
    """``weight``, of the layer or its gradient, as (channels, rest) for the channels that it ``makes``, or reads."""
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
