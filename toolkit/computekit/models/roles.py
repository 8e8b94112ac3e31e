"""What a tensor in a file without code is: decided from its name, its shape and its neighbours.

The names follow PyTorch's own modules: a norm has running statistics or a bias of its own shape, a linear layer a bias
as long as it has rows. What nothing speaks for is ambiguous, and a step leaves it alone unless it is asked not to.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal, cast

from .base import ModelFile, TensorInfo

Role = Literal["linear", "conv", "embedding", "norm", "bias", "position", "statistics", "ambiguous", "not float"]

WEIGHTS: tuple[Role, ...] = ("linear", "conv", "embedding")
"""The roles that multiply activations or are looked up: nearly all bytes of a model, and safe to quantize."""

NOT_PARAMETERS: tuple[Role, ...] = ("statistics", "not float")
"""The roles that no optimizer has ever touched: running averages, counters and masks."""

_STATISTICS = re.compile(r"^running_(mean|var)$")
# weight, in_proj_weight, weight_ih_l0, weight_v; w_0 of Paddle; onnx::MatMul_12 of torch's exporter
_WEIGHT = re.compile(r"(^|_)(weights?|kernel)(_|$)|^original1$|^w_\d+$|^onnx::(MatMul|Gemm|Conv\w*)_\d+$")
_NORM = re.compile(r"(^|[._])(layer_?norm|group_?norm|batch_?norm|rms_?norm|norm|ln|bn)\d*($|[._])", re.IGNORECASE)
_BIAS = re.compile(r"(^|_)bias($|_)")
_POSITION = re.compile(r"(^|[._])(pos|position|positions|positional|wpe|relative)([._]|_?emb|$)|rel_pos", re.IGNORECASE)
_EMBEDDING = re.compile(r"emb|(^|[._])(wte|tok|token|tokens|shared|vocab|word|words|lookup)([._]|$)", re.IGNORECASE)
_COPY = re.compile(r"(^|_)(ema|avg|averaged?|swa|shadow|polyak|best|last|old|prev|previous|target|teacher)(_|$)", re.I)
_WRAPPER = re.compile(r"^(module\.|_orig_mod\.)+")


def of(info: TensorInfo, tensors: Mapping[str, TensorInfo]) -> Role:
    """The role of ``info`` among its neighbours ``tensors``, by name."""
    if not info.dtype.is_floating_point or info.dtype.itemsize < 2:
        return "not float"
    parent, _, own = info.name.rpartition(".")
    shape = info.shape
    if _STATISTICS.search(own):
        return "statistics"
    if len(shape) < 2:
        return "norm" if own == "weight" and len(shape) == 1 else "bias" if _BIAS.search(own) else "ambiguous"
    if _POSITION.search(info.name):
        return "position"
    if info.role and min(shape) > 0 and (shape[0] > 1 or len(shape) > 2):
        return cast(Role, info.role)
    bias = tensors.get(_sibling(parent, own.replace("weight", "bias")))
    if _NORM.search(info.name) or _sibling(parent, "running_mean") in tensors:
        return "norm"
    if bias is not None and bias.name != info.name and bias.shape == shape:
        return "norm"  # an affine over several axes: LayerNorm((C, H, W))
    if _BIAS.search(own):
        return "bias"
    if not _WEIGHT.search(own) or min(shape) == 0 or shape[0] == 1:
        return "ambiguous"
    if len(shape) > 2:
        return "conv"
    if bias is None and _looked_up(info, tensors):
        return "embedding"
    return "linear"


def count_parameters(file: ModelFile) -> int:
    """Values in a file's floating-point tensors: tied ones once, without running statistics and `copies`."""
    aside = tuple(copies(file))
    tensors = {name: info for name, info in file.tensors.items() if not (aside and name.startswith(aside))}
    distinct = {name if info.storage is None else info.storage: info for name, info in tensors.items()}
    return sum(info.numel for info in distinct.values() if of(info, tensors) not in NOT_PARAMETERS)


def copies(file: ModelFile) -> list[str]:
    """Those of a checkpoint's `ModelFile.parts` that are the first part once more: moving averages, earlier states.

    Their names say so, and their tensors have names and shapes of the model's. Two generators of one shape are two.
    """
    main, *others = file.parts
    shapes = _shapes(file, main)
    return [part for part in others if _COPY.search(part.rstrip(".")) and _shapes(file, part) <= shapes]


def _shapes(file: ModelFile, part: str) -> set[tuple[str, tuple[int, ...]]]:
    """Names and shapes of a part's tensors, without the prefixes that wrappers add."""
    tensors = [info for name, info in file.tensors.items() if name.startswith(part)]
    return {(_WRAPPER.sub("", info.name.removeprefix(part)), info.shape) for info in tensors}


def _looked_up(info: TensorInfo, tensors: Mapping[str, TensorInfo]) -> bool:
    """Whether a matrix without bias is an embedding table: its name says so, or it shares its bytes with one."""
    tied = (other.name for other in tensors.values() if info.storage is not None and other.storage == info.storage)
    return any(_EMBEDDING.search(name) for name in (info.name, *tied))


def _sibling(parent: str, name: str) -> str:
    return f"{parent}.{name}" if parent else name
