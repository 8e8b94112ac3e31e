"""How far the roofline for models that are no transformers is from measured times, on one core of this processor.

    computekit benchmark device --threads 1 -o device.json
    python benchmarks/generic_roofline.py device.json
    python benchmarks/generic_roofline.py device.json -o plugins/computekit_estimator/data/generic.json

Each round runs every model once, forward in eval mode and a training step without optimizer, so that a disturbance
meets all of them; the time is the median over rounds of CPU time in one thread. The estimate takes the rates of
device.json and what the operators count, nothing else. The intervals of ``estimator train`` for such models come from
the ratios that -o writes.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from computekit import flops
from computekit_estimator import generic, hardware

KEPT = ("peak_flops", "memory_rate", "launch_s", "cache_bytes")


class Recurrent(nn.Module):
    """The last state of a recurrent net, through a linear layer."""

    def __init__(self, kind: str, width: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.body = getattr(nn, kind)(width, hidden, layers, batch_first=True)
        self.head = nn.Linear(hidden, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x)[0][:, -1])


class Residual(nn.Module):
    """Two convolutions beside a shortcut (ResNet's basic block)."""

    def __init__(self, into: int, out: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(*conv(into, out, stride), *conv(out, out, 1)[:2])
        self.short = nn.Identity() if into == out and stride == 1 else nn.Conv2d(into, out, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(x) + self.short(x))


def conv(into: int, out: int, stride: int, groups: int = 1) -> list[nn.Module]:
    return [nn.Conv2d(into, out, 3, stride, 1, groups=groups, bias=False), nn.BatchNorm2d(out), nn.ReLU()]


def head(width: int) -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 100)]


def mlp(*widths: int) -> nn.Module:
    layers: list[nn.Module] = []
    for into, out in itertools.pairwise(widths):
        layers += [nn.Linear(into, out), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def plain(width: int) -> nn.Module:
    """Six convolutions with batch norm, as VGG stacks them."""
    plan = [(3, width, 1), (width, width, 1), (width, 2 * width, 2), (2 * width, 2 * width, 1),
            (2 * width, 4 * width, 2), (4 * width, 4 * width, 1)]  # fmt: skip
    return nn.Sequential(*(layer for sizes in plan for layer in conv(*sizes)), *head(4 * width))


def resnet18() -> nn.Module:
    blocks = [(64, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1), (256, 512, 2),
              (512, 512, 1)]  # fmt: skip
    stem = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    return nn.Sequential(*stem, *(Residual(*block) for block in blocks), *head(512))


def depthwise() -> nn.Module:
    """Depthwise separable convolutions, as in MobileNet."""
    layers, width = conv(3, 32, 2), 32
    for out, stride in ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), (512, 1)):
        layers += [*conv(width, width, stride, groups=width), nn.Conv2d(width, out, 1), nn.BatchNorm2d(out), nn.ReLU()]
        width = out
    return nn.Sequential(*layers, *head(width))


def audio() -> nn.Module:
    """Strided convolutions over a waveform."""
    return nn.Sequential(nn.Conv1d(1, 64, 64, 4), nn.ReLU(), nn.Conv1d(64, 64, 16, 4), nn.ReLU(),
                         nn.Conv1d(64, 128, 8, 2), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(),
                         nn.Linear(128, 10))  # fmt: skip


def encoder(width: int, layers: int, heads: int, inner: int) -> nn.Module:
    layer = nn.TransformerEncoderLayer(width, heads, inner, batch_first=True)
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)


def models() -> dict[str, tuple[nn.Module, tuple[int, ...]]]:
    """The modules and the shape of one batch of each."""
    return {
        "mlp 784-1024-1024-10, batch 64": (mlp(784, 1024, 1024, 10), (64, 784)),
        "mlp 784-1024-1024-10, batch 1": (mlp(784, 1024, 1024, 10), (1, 784)),
        "mlp 64-256-256-8, batch 256": (mlp(64, 256, 256, 8), (256, 64)),
        "vgg-like 32, batch 8 of 32x32": (plain(32), (8, 3, 32, 32)),
        "vgg-like 16, batch 1 of 224x224": (plain(16), (1, 3, 224, 224)),
        "resnet18, batch 2 of 112x112": (resnet18(), (2, 3, 112, 112)),
        "resnet18, batch 1 of 224x224": (resnet18(), (1, 3, 224, 224)),
        "depthwise, batch 4 of 128x128": (depthwise(), (4, 3, 128, 128)),
        "depthwise, batch 1 of 224x224": (depthwise(), (1, 3, 224, 224)),
        "audio convolutions, batch 8 of 4000": (audio(), (8, 1, 4000)),
        "lstm 128-256, 2 layers, 64 steps, batch 16": (Recurrent("LSTM", 128, 256, 2), (16, 64, 128)),
        "lstm 64-128, 64 steps, batch 1": (Recurrent("LSTM", 64, 128, 1), (1, 64, 64)),
        "gru 128-256, 64 steps, batch 8": (Recurrent("GRU", 128, 256, 1), (8, 64, 128)),
        "encoder 384 x 6, 128 tokens": (encoder(384, 6, 12, 1536), (1, 128, 384)),
        "encoder 128 x 2, 64 tokens, batch 16": (encoder(128, 2, 4, 512), (16, 64, 128)),
    }


def predict(gpu: hardware.Gpu) -> dict[str, float]:
    """Seconds of each model's forward pass and training step ("NAME: step") on a device of these rates."""
    found = {}
    for name, (module, shape) in models().items():
        x = torch.zeros(shape)
        found[name] = generic.passes(flops.count(module.eval(), x, backward=False), gpu, "fp32").forward
        both = generic.passes(flops.count(module.train(), x), gpu, "fp32")
        found[f"{name}: step"] = both.forward + both.backward
    return found


def measure(rounds: int) -> dict[str, float]:
    """The same, measured: the median over rounds of CPU time in one thread."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    calls: dict[str, Any] = {}
    for name, (module, shape) in models().items():
        x = torch.randn(shape)
        calls[name] = lambda module=module, x=x: _forward(module, x)
        calls[f"{name}: step"] = lambda module=module, x=x: _step(module, x)
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds + 2):
        for name, call in calls.items():
            call()
            repeats, start = 0, time.process_time()
            while time.process_time() - start < 0.05:
                call()
                repeats += 1
            times[name].append((time.process_time() - start) / repeats)
    return {name: statistics.median(values[2:]) for name, values in times.items()}


def _forward(module: nn.Module, x: torch.Tensor) -> None:
    with torch.no_grad():
        module.eval()(x)


def _step(module: nn.Module, x: torch.Tensor) -> None:
    module.train()(x).sum().backward()
    module.zero_grad()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("device", help="record of: computekit benchmark device --threads 1")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("-o", "--output", type=Path, help="where to write the ratios, as JSON")
    asked = parser.parse_args()
    gpu = hardware.find(asked.device)
    measured, predicted = measure(asked.rounds), predict(gpu)
    rows = [
        {"model": name, "measured_s": float(f"{seconds:.4g}"), "predicted_s": float(f"{predicted[name]:.4g}")}
        for name, seconds in measured.items()
    ]
    for row in rows:
        name, seconds, estimate = row.values()
        print(
            f"{name:50} measured {1e3 * seconds:9.3f} ms  predicted {1e3 * estimate:9.3f} ms  {seconds / estimate:.2f}"
        )
    ratios = sorted(row["measured_s"] / row["predicted_s"] for row in rows)
    print(f"measured over predicted: median {statistics.median(ratios):.2f}, from {ratios[0]:.2f} to {ratios[-1]:.2f}")
    if asked.output:
        device = {name: getattr(gpu, name) for name in KEPT}
        document = {"device": {"name": gpu.name, **device}, "threads": 1, "clock": "cpu", "rows": rows}
        asked.output.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
