"""Making a freshly built module as small as a pruned file: layers take the shapes of the file's tensors.

A structurally pruned file holds fewer channels than its architecture builds. `shrink` gives each layer the shape of
its tensors, and the attributes that follow from it (``in_features``, ``groups``, ``num_features``, ...). Importing this
imports torch.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from ..errors import ComputekitError

Shape = tuple[int, ...]


class ShapesDoNotFit(ComputekitError):
    """A tensor of a file does not fit the module, even as a pruned one."""

    def __init__(self, name: str, shape: Shape, why: str) -> None:
        super().__init__(name, shape, why)
        self.name, self.shape, self.why = name, shape, why

    def __str__(self) -> str:
        return f"{self.name!r} has shape {list(self.shape)}: {self.why}"


def shrink(module: nn.Module, shapes: Mapping[str, Shape]) -> None:
    """Give the layers of ``module`` the ``shapes`` of a state_dict, in place; the new values are undefined.

    Handles Linear, convolutions (grouped, depthwise and transposed too), BatchNorm, LayerNorm, GroupNorm, RMSNorm,
    InstanceNorm, PReLU and Embedding, and parameters that a module holds directly. Tied parameters stay tied, types,
    devices and ``requires_grad`` stay as they are. Tensors that ``shapes`` does not name are left alone.

    Raises:
        ShapesDoNotFit: a tensor has another number of dimensions, is larger than what was built, or belongs to a
            layer whose attributes cannot follow.
    """
    replaced: dict[int, nn.Parameter] = {}
    for path, layer in module.named_modules():
        prefix = f"{path}." if path else ""
        tensors = {**layer._parameters, **layer._buffers}
        present = {key: tensor for key, tensor in tensors.items() if tensor is not None and prefix + key in shapes}
        changed = {key: shapes[prefix + key] for key in present if tuple(present[key].shape) != shapes[prefix + key]}
        if not changed:
            continue
        for key, shape in changed.items():
            built = tuple(present[key].shape)
            if len(shape) != len(built) or any(new > old for new, old in zip(shape, built, strict=True)):
                raise ShapesDoNotFit(prefix + key, shape, f"no part of the {list(built)} that was built; check --arch")
        if "weight" in changed:
            _set_attributes(layer, prefix + "weight", changed["weight"])
        for key, shape in changed.items():
            old = present[key]
            if isinstance(old, nn.Parameter):
                if id(old) not in replaced:
                    replaced[id(old)] = nn.Parameter(old.new_empty(shape), old.requires_grad)
                setattr(layer, key, replaced[id(old)])
            else:
                layer._buffers[key] = old.new_empty(shape)


def _set_attributes(layer: nn.Module, name: str, shape: Shape) -> None:
    """Set what ``layer`` derives from the shape of its weight."""
    if isinstance(layer, nn.Linear):
        layer.out_features, layer.in_features = shape
    elif isinstance(layer, nn.modules.conv._ConvNd):
        _set_convolution(layer, name, shape)
    elif isinstance(layer, (nn.modules.batchnorm._NormBase,)):
        layer.num_features = shape[0]
    elif isinstance(layer, (nn.LayerNorm, nn.RMSNorm)):
        layer.normalized_shape = shape
    elif isinstance(layer, nn.GroupNorm):
        if shape[0] % layer.num_groups:
            raise ShapesDoNotFit(name, shape, f"{layer.num_groups} groups do not divide it")
        layer.num_channels = shape[0]
    elif isinstance(layer, nn.PReLU):
        layer.num_parameters = shape[0]
    elif isinstance(layer, nn.Embedding):
        layer.num_embeddings, layer.embedding_dim = shape
    elif type(layer).__module__.startswith("torch.nn."):
        raise ShapesDoNotFit(name, shape, f"{type(layer).__name__} cannot be made smaller")


def _set_convolution(layer: nn.modules.conv._ConvNd, name: str, shape: Shape) -> None:
    """Channels and groups from the weight: (out, in/groups, ...), or (in, out/groups, ...) where transposed.

    A depthwise convolution (one input channel per group) has as many groups as channels are left; any other grouped
    convolution keeps its number of groups.
    """
    first, per_group = shape[:2]
    if layer.groups > 1 and layer.groups == layer.in_channels and not layer.transposed:
        multiplier = layer.out_channels // layer.in_channels
        groups, rest = divmod(first, multiplier)
    else:
        groups, rest = layer.groups, first % layer.groups
    if rest:
        raise ShapesDoNotFit(name, shape, f"{first} channels do not divide into its groups")
    layer.groups = groups
    channels = (per_group * groups, first)
    layer.in_channels, layer.out_channels = reversed(channels) if layer.transposed else channels
