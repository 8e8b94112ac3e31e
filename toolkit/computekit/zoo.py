"""The built-in architectures: an MLP, a small ResNet, a small ViT and a small GPT.

Plain modules under plain names, so that pruning, quantization, FLOP counting and ``torch.export`` find what they know:
attention has separate ``q``, ``k``, ``v`` and ``out`` Linear layers, and head sizes follow from the weights.
The factories import torch when they are called.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .contracts import Architecture
from .errors import ComputekitError

if TYPE_CHECKING:
    import torch
    from torch import nn

    from .datasets import Data
    from .models import ArchRef


def _mlp(in_features: int = 64, classes: int = 10, hidden: int = 128, depth: int = 2) -> nn.Module:
    from .zoo_modules import MLP

    return MLP(in_features, classes, hidden, depth)


def _resnet(
    in_channels: int = 1, classes: int = 10, width: int = 32, blocks: tuple[int, ...] = (1, 1, 1), stem_stride: int = 1
) -> nn.Module:
    from .zoo_modules import ResNet

    return ResNet(in_channels, classes, width, blocks, stem_stride)


def _vit(
    image_size: int = 8, patch: int = 2, in_channels: int = 1, classes: int = 10, dim: int = 64, depth: int = 4,
    heads: int = 4,
) -> nn.Module:  # fmt: skip
    from .zoo_modules import ViT

    return ViT(image_size, patch, in_channels, classes, dim, depth, heads)


def _gpt(vocab: int = 256, context: int = 128, dim: int = 128, depth: int = 2, heads: int = 4) -> nn.Module:
    from .zoo_modules import GPT

    return GPT(vocab, context, dim, depth, heads)


def _features(batch: int, in_features: int = 64, **_other: Any) -> tuple[torch.Tensor]:
    import torch

    return (torch.zeros(batch, in_features),)


def _image(batch: int, in_channels: int = 1, image_size: int = 8, **_other: Any) -> tuple[torch.Tensor]:
    import torch

    return (torch.zeros(batch, in_channels, image_size, image_size),)


def _resnet_image(batch: int, in_channels: int = 1, stem_stride: int = 1, **_other: Any) -> tuple[torch.Tensor]:
    return _image(batch, in_channels, 8 if stem_stride == 1 else 28)


def _tokens(batch: int, context: int = 128, **_other: Any) -> tuple[torch.Tensor]:
    import torch

    return (torch.zeros(batch, context, dtype=torch.int64),)


def _mlp_defaults(data: Data) -> Mapping[str, Any]:
    _wants("mlp", data, "classification")
    return {"in_features": data.train.inputs[0].numel(), "classes": data.classes}


def _resnet_defaults(data: Data) -> Mapping[str, Any]:
    channels, height, width = _image_shape("resnet", data)
    return {"in_channels": channels, "classes": data.classes, "stem_stride": 2 if min(height, width) >= 24 else 1}


def _vit_defaults(data: Data) -> Mapping[str, Any]:
    channels, height, width = _image_shape("vit", data)
    if height != width:
        raise ComputekitError(f"architecture 'vit' needs square images; data {data.name} has {height}x{width}")
    patch = next((p for p in (height // 4, height // 7, height // 8, 4, 2, 1) if p and height % p == 0), 1)
    return {"in_channels": channels, "classes": data.classes, "image_size": height, "patch": patch}


def _gpt_defaults(data: Data) -> Mapping[str, Any]:
    _wants("gpt", data, "language-modeling")
    return {"vocab": data.classes, "context": data.sample_shape[0]}


def _wants(arch: str, data: Data, task: str) -> None:
    if data.task != task:
        fits = "gpt" if data.task == "language-modeling" else "mlp, resnet or vit"
        raise ComputekitError(f"architecture {arch!r} is for {task}, but data {data.name} is {data.task}; use {fits}")


def _image_shape(arch: str, data: Data) -> tuple[int, int, int]:
    _wants(arch, data, "classification")
    if len(data.sample_shape) != 3:
        shape = "x".join(map(str, data.sample_shape))
        raise ComputekitError(f"architecture {arch!r} needs images; a sample of {data.name} has shape {shape}; use mlp")
    channels, height, width = data.sample_shape
    return channels, height, width


def for_data(name: str, args: Mapping[str, Any] | None, data: Data) -> ArchRef:
    """The architecture called ``name``, with the arguments that fit ``data`` wherever ``args`` does not set them.

    ``package.module:callable`` gets ``args`` alone. Raises UnknownName, and ComputekitError where the architecture is
    of no use for the data.
    """
    from . import host
    from .models import ArchRef

    fitting = {} if ":" in name else host.current().architecture(name).defaults(data)
    return ArchRef(name, {**fitting, **(args or {})})


BUILTIN: tuple[Architecture, ...] = (
    Architecture("mlp", "multi-layer perceptron on flat features or small images", _mlp, _features, _mlp_defaults),
    Architecture("resnet", "small residual CNN for images", _resnet, _resnet_image, _resnet_defaults),
    Architecture("vit", "small vision transformer for square images", _vit, _image, _vit_defaults),
    Architecture("gpt", "small decoder-only transformer for text", _gpt, _tokens, _gpt_defaults),
)
