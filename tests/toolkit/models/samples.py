"""One small real file of each kind, made by the kind's own library. Tests damage copies of them."""

from __future__ import annotations

import struct
import warnings
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn

KINDS = ("torch", "torch legacy", "safetensors", "gguf", "torchscript", "pt2", "onnx")


class Tiny(nn.Module):
    """Two layers and a buffer; at module level, so that TorchScript finds its source."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(2, 3, 3)
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.norm(self.conv(x))
        return y


def state() -> dict[str, torch.Tensor]:
    return {"a.weight": torch.arange(60.0).reshape(6, 10), "a.bias": torch.ones(6).half(), "n": torch.tensor(3)}


def make(kind: str, path: Path) -> Path:
    """Write a small file of ``kind``."""
    if kind in ("torch", "torch legacy"):
        document = {
            "epoch": 3,
            "model": state(),
            "optimizer": {"state": {0: torch.ones(9)}, "param_groups": [{"lr": 1e-3}]},
        }
        torch.save(document, path, _use_new_zipfile_serialization=kind == "torch")
    elif kind == "safetensors":
        save_file(state(), path, {"format": "pt"})
    elif kind == "gguf":
        _gguf(path)
    elif kind == "onnx":
        _onnx(path)
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if kind == "torchscript":
                torch.jit.trace(Tiny().eval(), torch.ones(1, 2, 9)).save(str(path))
            else:
                path = path.with_suffix(".pt2")
                torch.export.save(torch.export.export(Tiny().eval(), (torch.ones(1, 2, 9),)), path)
    return path


def _gguf(path: Path) -> None:
    """By hand: one plain and one Q8_0 tensor, and a key of each common type."""

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    pairs = text("general.name") + struct.pack("<I", 8) + text("tiny")
    pairs += text("general.alignment") + struct.pack("<II", 4, 32)
    pairs += text("tokens") + struct.pack("<IIQ", 9, 8, 3) + text("a") + text("b") + text("c")
    plain, blocks = struct.pack("<32f", *range(32)), struct.pack("<e32b", 0.5, *range(32)) * 4
    head = text("a") + struct.pack("<IQQIQ", 2, 8, 4, 0, 0) + text("b") + struct.pack("<IQQIQ", 2, 32, 4, 8, len(plain))
    start = b"GGUF" + struct.pack("<IQQ", 3, 2, 3) + pairs + head
    path.write_bytes(start + b"\0" * (-len(start) % 32) + plain + blocks)


def _onnx(path: Path) -> None:
    import onnx
    from onnx import numpy_helper

    initializers = [numpy_helper.from_array(tensor.numpy(), name) for name, tensor in state().items()]
    onnx.save(onnx.helper.make_model(onnx.helper.make_graph([], "g", [], [], initializers)), path)
