"""Image models of published tables by name: their layers as the papers give them.

AlexNet (one-tower version), VGG, ResNet (v1.5), wide ResNet and ResNeXt, SqueezeNet, RegNet, Inception v3, ViT: for
counts of parameters and FLOPs, without weights. Importing this imports torch.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

CLASSES = 1000


def build(name: str) -> nn.Module | None:
    """The model that a table calls ``name`` ("ResNet50", "VGG16_BN", "ViT_B_16"); None for one that is not known."""
    for pattern, make in _NAMES:
        found = re.fullmatch(pattern, _word(name))
        if found:
            return make(*found.groups())
    return None


def known(name: str) -> bool:
    """Whether `build` knows this name."""
    return any(re.fullmatch(pattern, _word(name)) for pattern, _ in _NAMES)


def _word(name: str) -> str:
    """A name in lower case with underscores; timm's ("vit_base_patch16_224") in the form of torchvision's."""
    word = re.sub(r"[\s-]+", "_", name.strip().lower()).split(".")[0]
    timm = re.fullmatch(r"(?:vit|deit)_(tiny|small|base|large|huge)_patch(\d+)_(?:224)", word)
    sizes = {"tiny": "ti", "small": "s", "base": "b", "large": "l", "huge": "h"}
    return f"vit_{sizes[timm[1]]}_{timm[2]}" if timm else word


class Parallel(nn.Module):
    """Branches over one input, joined along channels."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([branch(x) for branch in self.branches], 1)


class Residual(nn.Module):
    """A body beside a shortcut."""

    def __init__(self, body: nn.Module, short: nn.Module) -> None:
        super().__init__()
        self.body, self.short = body, short

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(x) + self.short(x))


class Squeeze(nn.Module):
    """Squeeze and excitation."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(width, inner, 1), nn.Conv2d(inner, width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.sigmoid(self.up(torch.relu(self.down(x.mean((2, 3), keepdim=True)))))


def _linear_conv(into: int, out: int, kernel: Any, stride: int = 1, padding: Any = 0, groups: int = 1) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(into, out, kernel, stride, padding, groups=groups, bias=False), nn.BatchNorm2d(out))


def _conv(into: int, out: int, kernel: Any, stride: int = 1, padding: Any = 0, groups: int = 1) -> nn.Sequential:
    return nn.Sequential(*_linear_conv(into, out, kernel, stride, padding, groups), nn.ReLU())


def _head(width: int) -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, CLASSES)]


def _dense(into: int) -> list[nn.Module]:
    return [nn.Flatten(), nn.Linear(into, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, CLASSES)]


def alexnet() -> nn.Module:
    layers: list[nn.Module] = []
    for into, out, kernel, stride, padding, pool in (
        (3, 64, 11, 4, 2, True), (64, 192, 5, 1, 2, True), (192, 384, 3, 1, 1, False), (384, 256, 3, 1, 1, False),
        (256, 256, 3, 1, 1, True),
    ):  # fmt: skip
        layers += [nn.Conv2d(into, out, kernel, stride, padding), nn.ReLU(), *([nn.MaxPool2d(3, 2)] if pool else [])]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(6), *_dense(256 * 36))


def vgg(depth: str, norm: str | None) -> nn.Module:
    repeats = {"11": (1, 1, 2, 2, 2), "13": (2, 2, 2, 2, 2), "16": (2, 2, 3, 3, 3), "19": (2, 2, 4, 4, 4)}[depth]
    layers: list[nn.Module] = []
    into = 3
    for count, out in zip(repeats, (64, 128, 256, 512, 512), strict=True):
        for _ in range(count):
            layers += [nn.Conv2d(into, out, 3, 1, 1), *([nn.BatchNorm2d(out)] if norm else []), nn.ReLU()]
            into = out
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(7), *_dense(512 * 49))


def resnet(depth: str, groups: int = 1, width: int = 64) -> nn.Module:
    """Bottlenecks from 50 layers on, with the stride in the 3 x 3 convolution; ``width`` of a group at 64 channels."""
    blocks = {"18": (2, 2, 2, 2), "34": (3, 4, 6, 3), "50": (3, 4, 6, 3), "101": (3, 4, 23, 3), "152": (3, 8, 36, 3)}
    deep = int(depth) >= 50
    layers: list[nn.Module] = [_conv(3, 64, 7, 2, 3), nn.MaxPool2d(3, 2, 1)]
    into = 64
    for stage, count in enumerate(blocks[depth]):
        base = 64 * 2**stage
        for i in range(count):
            stride = 2 if stage and not i else 1
            out, inner = (4 * base, base * width * groups // 64) if deep else (base, base)
            if deep:
                body = nn.Sequential(
                    _conv(into, inner, 1), _conv(inner, inner, 3, stride, 1, groups), *_linear_conv(inner, out, 1)
                )
            else:
                body = nn.Sequential(_conv(into, out, 3, stride, 1), *_linear_conv(out, out, 3, 1, 1))
            short = nn.Identity() if into == out and stride == 1 else _linear_conv(into, out, 1, stride)
            layers.append(Residual(body, short))
            into = out
    return nn.Sequential(*layers, *_head(into))


def squeezenet(version: str) -> nn.Module:
    first = (96, 7) if version == "0" else (64, 3)
    pools = (2, 6) if version == "0" else (1, 3)
    layers: list[nn.Module] = [nn.Conv2d(3, *first, 2), nn.ReLU(), nn.MaxPool2d(3, 2, ceil_mode=True)]
    into = first[0]
    for i, squeeze in enumerate((16, 16, 32, 32, 48, 48, 64, 64)):
        expand = 4 * squeeze
        both = Parallel(nn.Conv2d(squeeze, expand, 1), nn.Conv2d(squeeze, expand, 3, 1, 1))
        layers += [nn.Conv2d(into, squeeze, 1), nn.ReLU(), both, nn.ReLU()]
        into = 2 * expand
        if i in pools:
            layers.append(nn.MaxPool2d(3, 2, ceil_mode=True))
    return nn.Sequential(*layers, nn.Conv2d(into, CLASSES, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())


_REGNETS = {
    "y_400mf": (16, 48, 27.89, 2.09, 8), "y_800mf": (14, 56, 38.84, 2.4, 16), "y_1_6gf": (27, 48, 20.71, 2.65, 24),
    "y_3_2gf": (21, 80, 42.63, 2.66, 24), "y_8gf": (17, 192, 76.82, 2.19, 56), "y_16gf": (18, 200, 106.23, 2.48, 112),
    "y_32gf": (20, 232, 115.89, 2.53, 232), "y_128gf": (27, 456, 160.83, 2.52, 264),
    "x_400mf": (22, 24, 24.48, 2.54, 16), "x_800mf": (16, 56, 35.73, 2.28, 16), "x_1_6gf": (18, 80, 34.01, 2.25, 24),
    "x_3_2gf": (25, 88, 26.31, 2.25, 48), "x_8gf": (23, 80, 49.56, 2.88, 120), "x_16gf": (22, 216, 55.59, 2.1, 128),
    "x_32gf": (23, 320, 69.86, 2.0, 168),
}  # fmt: skip
"""Depth, w_0, w_a, w_m and group width of each (Radosavovic et al. 2020, arXiv:2003.13678, appendix)."""


def regnet(name: str) -> nn.Module | None:
    if name not in _REGNETS:
        return None
    depth, start, slope, ratio, group = _REGNETS[name]
    exponents = [round(math.log((start + slope * i) / start) / math.log(ratio)) for i in range(depth)]
    widths = [int(round(start * ratio**e / 8) * 8) for e in exponents]
    layers: list[nn.Module] = [_conv(3, 32, 3, 2, 1)]
    into, before = 32, 0
    for width in widths:
        each = min(group, width)
        out = int((width + each / 2) // each * each)
        stride = 2 if width != before else 1
        middle = [Squeeze(out, round(into / 4))] if name.startswith("y") else []
        body = nn.Sequential(
            _conv(into, out, 1), _conv(out, out, 3, stride, 1, out // each), *middle, *_linear_conv(out, out, 1)
        )
        short = nn.Identity() if into == out and stride == 1 else _linear_conv(into, out, 1, stride)
        layers.append(Residual(body, short))
        into, before = out, width
    return nn.Sequential(*layers, *_head(into))


def inception3() -> nn.Module:
    """Inception v3 (Szegedy et al. 2015, arXiv:1512.00567) with its auxiliary head, which inference leaves out."""

    def chain(into: int, *steps: tuple[Any, ...]) -> nn.Sequential:
        layers = []
        for out, kernel, *rest in steps:
            layers.append(_conv(into, out, kernel, *rest))
            into = out
        return nn.Sequential(*layers)

    def pooled(into: int, out: int) -> nn.Sequential:
        return nn.Sequential(nn.AvgPool2d(3, 1, 1), _conv(into, out, 1))

    def a(into: int, pool: int) -> nn.Module:
        return Parallel(chain(into, (64, 1)), chain(into, (48, 1), (64, 5, 1, 2)),
                        chain(into, (64, 1), (96, 3, 1, 1), (96, 3, 1, 1)), pooled(into, pool))  # fmt: skip

    def c(into: int, inner: int) -> nn.Module:
        row, column = ((1, 7), 1, (0, 3)), ((7, 1), 1, (3, 0))
        return Parallel(
            chain(into, (192, 1)),
            chain(into, (inner, 1), (inner, *row), (192, *column)),
            chain(into, (inner, 1), (inner, *column), (inner, *row), (inner, *column), (192, *row)),
            pooled(into, 192),
        )

    def e(into: int) -> nn.Module:
        def fork(width: int) -> nn.Module:
            return Parallel(_conv(width, 384, (1, 3), 1, (0, 1)), _conv(width, 384, (3, 1), 1, (1, 0)))

        return Parallel(chain(into, (320, 1)), nn.Sequential(_conv(into, 384, 1), fork(384)),
                        nn.Sequential(chain(into, (448, 1), (384, 3, 1, 1)), fork(384)), pooled(into, 192))  # fmt: skip

    b = Parallel(chain(288, (384, 3, 2)), chain(288, (64, 1), (96, 3, 1, 1), (96, 3, 2)), nn.MaxPool2d(3, 2))
    long = chain(768, (192, 1), (192, (1, 7), 1, (0, 3)), (192, (7, 1), 1, (3, 0)), (192, 3, 2))
    d = Parallel(chain(768, (192, 1), (320, 3, 2)), long, nn.MaxPool2d(3, 2))
    stem = [chain(3, (32, 3, 2), (32, 3), (64, 3, 1, 1)), nn.MaxPool2d(3, 2), chain(64, (80, 1), (192, 3)),
            nn.MaxPool2d(3, 2)]  # fmt: skip
    body = _Main(*stem, a(192, 32), a(256, 64), a(288, 64), b, c(768, 128), c(768, 160), c(768, 160), c(768, 192))
    for layer in (d, e(1280), e(2048), *_head(2048)):
        body.append(layer)
    body.auxiliary = nn.Sequential(chain(768, (128, 1), (768, 5)), nn.Linear(768, CLASSES))
    return body


class _Main(nn.Sequential):
    """A sequence beside an auxiliary head that only training uses."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for name, layer in self.named_children():
            x = x if name == "auxiliary" else layer(x)
        return x


class Vit(nn.Module):
    """A vision transformer (Dosovitskiy et al. 2020, arXiv:2010.11929)."""

    def __init__(self, size: str, patch: str, side: int = 224) -> None:
        super().__init__()
        layers, width, heads, inner = {"b": (12, 768, 12, 3072), "l": (24, 1024, 16, 4096), "h": (32, 1280, 16, 5120),
                                       "s": (12, 384, 6, 1536), "ti": (12, 192, 3, 768)}[size]  # fmt: skip
        self.patches = nn.Conv2d(3, width, int(patch), int(patch))
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.zeros(1, (side // int(patch)) ** 2 + 1, width))
        layer = nn.TransformerEncoderLayer(width, heads, inner, activation="gelu", batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, layers, nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1)
        return self.head(self.body(x + self.positions[:, : x.shape[1]])[:, 0])  # type: ignore[no-any-return]


_NAMES: tuple[tuple[str, Callable[..., nn.Module | None]], ...] = (
    (r"alexnet", alexnet),
    (r"vgg_?(11|13|16|19)(_?bn)?", vgg),
    (r"resnet_?(18|34|50|101|152)", resnet),
    (r"wide_resnet_?(50|101)_2", lambda depth: resnet(depth, 1, 128)),
    (r"resnext_?(50|101)_?(32|64)x(4|8)d", lambda depth, groups, width: resnet(depth, int(groups), int(width))),
    (r"squeezenet_?1_([01])", squeezenet),
    (r"regnet_?([xy]_\w+)", regnet),
    (r"inception_?v?3", inception3),
    (r"vit_(b|l|h|s|ti)_(14|16|32)", Vit),
)  # fmt: skip
