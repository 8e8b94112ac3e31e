"""What goes into a model: the option ``--input-shape``, and the tensors that it describes."""

from __future__ import annotations

import inspect
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    import torch
    from torch import nn

_DTYPES = ("float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool")
_VALUE = "value="


@dataclass(frozen=True)
class Input:
    """One positional argument of a model: a tensor, of ``shape`` for one sample, or ``value``, one number for all.

    ``dtype`` is a name such as "int64"; None stands for the model's own: token ids in a model that begins with an
    embedding, floats in others.
    """

    shape: tuple[int, ...] = ()
    dtype: str | None = None
    value: float | None = None

    def __str__(self) -> str:
        if self.value is not None:
            return f"{_VALUE}{self.value}"
        return "x".join(map(str, self.shape)) + (f":{self.dtype}" if self.dtype else "")

    def make(
        self, batch: int, floats: torch.dtype, vocabulary: int | None, generator: torch.Generator
    ) -> torch.Tensor | float:
        """The argument for ``batch`` samples: normal random numbers, or token ids below ``vocabulary``.

        ``floats`` is the type that the model computes in. Integers of a type that was asked for are 1, which is a
        token, a position, and a mask that hides nothing.
        """
        import torch

        if self.value is not None:
            return self.value
        size = (batch, *self.shape)
        if self.dtype is None and vocabulary is not None:
            return torch.randint(vocabulary, size, generator=generator)
        dtype = getattr(torch, self.dtype) if self.dtype else floats
        if not dtype.is_floating_point:
            return torch.ones(size, dtype=dtype)
        return torch.randn(size, generator=generator).to(dtype)


def vocabulary(module: nn.Module) -> int | None:
    """Number of tokens that the module knows if its first layer with weights is an embedding, else None.

    A module without layers, which runs a program, tells by its attribute ``vocabulary``.
    """
    from torch import nn

    told = getattr(module, "vocabulary", None)
    if isinstance(told, int):
        return told
    for layer in module.modules():
        weight = next(layer.parameters(recurse=False), None)
        if weight is not None:
            scripted = getattr(layer, "original_name", "") in ("Embedding", "EmbeddingBag")
            return len(weight) if scripted or isinstance(layer, nn.Embedding | nn.EmbeddingBag) else None
    return None


def taken_by(module: nn.Module) -> str:
    """The arguments of the module's forward call as far as they can be known, such as ``x: Tensor, sr: int``."""
    schema = getattr(module.forward, "schema", None)  # of a scripted module; the first argument is the module itself
    if schema is not None:
        return ", ".join(f"{argument.name}: {argument.type}" for argument in schema.arguments[1:])
    try:
        return ", ".join(inspect.signature(module.forward).parameters)
    except (TypeError, ValueError):
        return ""


class InputShapes(click.ParamType[tuple[Input, ...]]):
    """``3x224x224`` or ``3,224,224``; ``SHAPE:DTYPE``; several inputs with ``+`` between them: ``128:int64+128``."""

    name = "shape"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[Input, ...]:
        if isinstance(value, tuple):
            return value
        try:
            return tuple(_parse(part.strip()) for part in str(value).split("+"))
        except ValueError as error:
            self.fail(f"{value!r}: {error}", param, ctx)


def _parse(text: str) -> Input:
    if text.startswith(_VALUE):
        return Input(value=_number(text.removeprefix(_VALUE)))
    sizes, colon, dtype = text.partition(":")
    if colon and dtype not in _DTYPES:
        raise ValueError(f"{dtype!r} is no type of numbers; known: {', '.join(_DTYPES)}")
    parts = sizes.strip().replace("x", ",").split(",") if sizes.strip() else []
    if not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
        raise ValueError(
            f"{sizes!r} is not a list of whole numbers above zero, such as 3,224,224 (several inputs: "
            "128:int64+128; a plain number: value=16000)"
        )
    return Input(tuple(map(int, parts)), dtype or None)


def _number(text: str) -> float:
    for kind in (int, float):
        try:
            number: float = kind(text)
        except ValueError:
            continue
        if math.isfinite(number):
            return number
    raise ValueError(f"{text!r} is not a finite number")
