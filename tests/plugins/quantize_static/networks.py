"""Small networks that share, join, branch and reorder values, and files of them on fixed grids."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from computekit.models import ArchRef, build, compressed, int8_program
from computekit_quantize import static


def conv(a: int, b: int, kernel: int = 3, **words) -> nn.Conv2d:
    return nn.Conv2d(a, b, kernel, padding=kernel // 2, **words)


class Forked(nn.Module):
    """The convolution's own output is used beside the normalized one: BatchNorm must not be folded into it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.last = conv(3, 8), nn.BatchNorm2d(8), conv(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(x)
        return self.last(F.relu(self.norm(y)) + y)


class Residual(nn.Module):
    """The input of the block is added after the block, and used again after that."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.a, self.b, self.last = conv(3, 8), conv(8, 8), conv(8, 8), conv(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.first(x), inplace=True)
        y = self.b(self.a(x).relu())
        y += x
        return self.last(y.relu_()) + self.last(x)


class Joined(nn.Module):
    """Concatenation, chunks and a channel shuffle: values move, as integers."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = conv(3, 8), conv(3, 8), conv(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.cat([F.relu(self.a(x)), F.relu(self.b(x))], 1)
        y = y.view(x.shape[0], 2, 8, y.size(2), y.size(3)).transpose(1, 2).flatten(1, 2)
        left, right = y.chunk(2, dim=1)
        return self.c(left) - self.c(F.max_pool2d(right, 3, 1, 1))


class NormAndActivation(nn.BatchNorm2d):
    """As in timm: checks the shape, normalizes by the function, and applies an activation function."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch._assert(x.ndim == 4, "images only")
        y = F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, self.training, 0.1, self.eps)
        return self.act(y)


class Shuffled(nn.Module):
    """Half of the channels pass by each block, as in ShuffleNet: one grid for all that is ever joined."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.a, self.b, self.last = conv(3, 8), conv(4, 4), conv(4, 4), conv(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.first(x))
        for layer in (self.a, self.b):
            kept, changed = x.chunk(2, 1)
            x = torch.cat((kept, F.relu(layer(changed))), dim=1)
            x = x.view(x.size(0), 2, 4, x.size(2), x.size(3)).transpose(1, 2).contiguous().view(x.size(0), 8, 10, 8)
        return self.last(x).view(x.size(0), -1)


class Gated(nn.Module):
    """Squeeze and excitation, with floats where integers cannot do it."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.squeeze, self.b = conv(3, 8), nn.Linear(8, 8), conv(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.silu(self.a(x))
        gate = torch.sigmoid(self.squeeze(y.mean((2, 3))))
        return self.b(y * gate[:, :, None, None])


class Shared(nn.Module):
    """One convolution, called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.twice = conv(3, 8), conv(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.twice(F.relu(self.twice(F.relu(self.first(x)))))


class Branching(nn.Module):
    """Looks at values, so that it cannot be traced; what is inside can."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(conv(3, 8), nn.BatchNorm2d(8), nn.ReLU(), conv(8, 4))
        self.alone = conv(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.body(x)
        return self.alone(y) if y.sum() > -1e9 else y


class Optional(nn.Module):
    """Arguments with defaults, one of them a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 12), nn.Linear(12, 5)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None, scale: float = 2.0) -> torch.Tensor:
        y = F.gelu(self.a(x)) * scale
        return self.b(y if mask is None else y * mask)


class Lines(nn.Module):
    """One-dimensional, with pooling and a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm = nn.Conv1d(3, 8, 5, padding="same"), nn.BatchNorm1d(8)
        self.pool, self.b, self.c = nn.MaxPool1d(2), nn.Conv1d(8, 8, 3, padding=1), nn.Conv1d(8, 4, 4, padding="same")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pool(F.relu(self.norm(self.a(x.flatten(2)))))
        return self.c(F.relu(self.b(x) + x))


IMAGE = (3, 10, 8)
NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], tuple[int, int] | None]] = {
    # a factory, the shape of a sample, and how often the program rounds floats and goes back to them; None if no value
    # can stay in integers, so that each layer is a program of its own
    "resnet": (lambda: build(ArchRef("resnet", {"width": 8})), (1, 8, 8), (2, 0)),
    "mlp": (lambda: build(ArchRef("mlp", {"in_features": 24, "hidden": 16})), (24,), (1, 0)),
    "forked": (Forked, IMAGE, (2, 0)),
    "residual": (Residual, IMAGE, (1, 0)),
    "joined": (Joined, IMAGE, (1, 0)),
    "timm": (lambda: nn.Sequential(conv(3, 8), NormAndActivation(8), conv(8, 4)), IMAGE, (1, 0)),
    "shuffled": (Shuffled, IMAGE, (1, 0)),
    "gated": (Gated, IMAGE, (3, 0)),
    "shared": (Shared, IMAGE, (1, 0)),
    "optional": (Optional, (4, 6), (2, 0)),
    "lines": (Lines, (3, 24), (1, 0)),
    "mobile": (
        lambda: nn.Sequential(
            conv(3, 8), nn.BatchNorm2d(8), nn.ReLU6(), conv(8, 8, groups=8), nn.BatchNorm2d(8), nn.Hardswish(),
            conv(8, 4, 1),
        ),
        IMAGE,
        (1, 0),
    ),
    "vgg": (
        lambda: nn.Sequential(
            conv(3, 8), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Dropout(), nn.Flatten(), nn.Linear(160, 12),
            nn.ReLU(inplace=True), nn.Dropout(), nn.Linear(12, 4),
        ),
        IMAGE,
        (1, 0),
    ),
    "volume": (
        lambda: nn.Sequential(nn.Conv3d(2, 6, 3, padding=1), nn.BatchNorm3d(6), nn.ReLU(), nn.Conv3d(6, 3, 2)),
        (2, 5, 6, 4),
        (1, 0),
    ),
    "preactivation": (
        lambda: nn.Sequential(nn.BatchNorm2d(3), nn.ReLU(), conv(3, 8), nn.GELU(), conv(8, 4)), IMAGE, (2, 0)
    ),
    "transposed": (
        lambda: nn.Sequential(
            conv(3, 8), nn.ReLU(), conv(8, 8), nn.ConvTranspose2d(8, 4, 2, 2), nn.ReLU(), conv(4, 4)
        ),
        IMAGE,
        (2, 0),
    ),
}  # fmt: skip


def make(name: str) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    factory, shape, _ = NETS[name]
    module = factory().eval()
    for part in module.modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            nn.init.normal_(part.weight)
            nn.init.normal_(part.bias)
            nn.init.normal_(part.running_mean)
            nn.init.uniform_(part.running_var, 0.5, 2)
    return module, torch.randn(16, *shape) + 0.3


def save(module: nn.Module, x: torch.Tensor, path: Path, observer: str = "min-max") -> list[str]:
    """Write the quantized state_dict; returns the names of what was not traced."""
    grids, untraced = static.calibrate(module, static.layers_of(module), x.split(8), observer)
    state: dict[str, torch.Tensor] = {}
    for name, tensor in module.state_dict().items():
        layer = name.rpartition(".")[0]
        if tensor.ndim > 1:
            state.update(compressed.quantize(tensor).store(name))
            state.update(grids[layer].store(layer) if layer in grids else [])
        else:
            state[name] = tensor
    torch.save(state, path)
    return untraced


def conversions(module: nn.Module) -> tuple[int, int] | None:
    """How often the program of ``module`` rounds floats to integers, and turns integers back into floats."""
    if "_int8" not in module.__dict__:
        return None
    parts = list(module.__dict__["_int8"].program.modules())
    kinds = int8_program._ToIntegers, int8_program._ToFloats
    rounded, floats = (sum(type(part) is kind for part in parts) for kind in kinds)
    return rounded, floats
