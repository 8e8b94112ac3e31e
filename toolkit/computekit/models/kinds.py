"""The kinds of model file that the host itself brings; each has a module of its own, imported when it is needed."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..contracts import Architecture, ModelFormat

if TYPE_CHECKING:
    from torch import nn


def _of(module: str, function: str) -> Callable[..., Any]:
    """``function`` of a sibling module that imports torch, imported at the first call."""

    def call(*arguments: Any) -> Any:
        return getattr(importlib.import_module(f".{module}", __package__), function)(*arguments)

    return call


def _kind(name: str, summary: str, module: str, writes: bool = True, **about: Any) -> ModelFormat:
    """A kind whose module has ``sniff``, ``read`` and ``write``."""
    write = _of(module, "write") if writes else None
    return ModelFormat(name, summary, _of(module, "sniff"), _of(module, "read"), write, **about)


_TORCH = (".pt", ".pth", ".bin", ".ckpt", ".tar")

BUILTIN: tuple[ModelFormat, ...] = (
    _kind("torch", "zip archive of torch.save: a state_dict or a checkpoint", "torch_files", suffixes=_TORCH),
    _kind("torch legacy", "pickles of torch < 1.6; written as a zip archive", "torch_legacy"),
    _kind("safetensors", "one safetensors file", "safetensors_files", suffixes=(".safetensors",)),
    _kind("sharded safetensors", "an index and its shards", "safetensors_shards", suffixes=(".index.json",)),
    _kind("folder", "a Hugging Face folder: config.json and weights", "huggingface", suffixes=("",)),
    _kind("torchscript", "a TorchScript archive (torch.jit.save)", "torchscript", writes=False),
    _kind("pt2", "an exported program (torch.export.save)", "exported", writes=False),
    _kind("gguf", "a GGUF file of llama.cpp, read as floats", "gguf_files", writes=False),
    _kind("onnx", "an ONNX model: the tensors of its graph", "onnx_files", suffixes=(".onnx",), priority=200),
)


def _build_transformers(config: dict[str, Any]) -> nn.Module:
    from . import huggingface

    return huggingface.build(config)


def _example_transformers(batch: int, config: dict[str, Any]) -> tuple[Any, ...]:
    from . import huggingface

    return huggingface.example(batch, config)


ARCHITECTURES: tuple[Architecture, ...] = (
    Architecture(
        "transformers", "any model of transformers, from its config.json", _build_transformers, _example_transformers
    ),
)
