"""How an exported program is called: as the module that it was made from. Importing this imports torch.

All of it is plain data, which the file's metadata keeps; what has an order is a list of pairs, since JSON keeps none.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from computekit import ComputekitError

_FILLED = {"attention_mask": 1, "token_type_ids": 0}
"""What may be left out beside token ids, and stands for it then: a mask that hides nothing, the first segment."""

Call = Callable[[list[Tensor]], list[Tensor]]


def inputs_of(module: nn.Module, *given: Any) -> dict[str, Any]:
    """What ``module`` is called with, by name: positional arguments, and what token ids have beside them.

    Names are those of the parameters; numbers are arguments that never change.

    Raises:
        ComputekitError: the module takes fewer arguments than are given.
    """
    names = parameters_of(module)
    if len(given) > len(names):
        raise ComputekitError(f"the model takes {len(names)} inputs ({', '.join(names)}), not {len(given)}")
    named = dict(zip(names, given, strict=False))
    first = given[0]
    if isinstance(first, Tensor) and not first.is_floating_point():
        named |= {n: torch.full_like(first, v) for n, v in _FILLED.items() if n in names and n not in named}
    return named


def parameters_of(module: nn.Module) -> dict[str, Any]:
    """The names of the positional parameters of the module's forward call, in their order, with their defaults.

    Only plain values are told as defaults: None stands for all others. ``*args`` count as 8.
    """
    found: dict[str, Any] = {}
    for each in inspect.signature(module.forward).parameters.values():
        if each.kind is each.VAR_POSITIONAL:
            found |= dict.fromkeys(f"{each.name}_{index}" for index in range(8))
        elif each.kind in (each.POSITIONAL_OR_KEYWORD, each.POSITIONAL_ONLY):
            plain = isinstance(each.default, bool | int | str) or (
                isinstance(each.default, float) and math.isfinite(each.default)
            )
            found[each.name] = each.default if plain else None
    return found


class Flat(nn.Module):
    """A module that takes its tensors by position, in the order of ``named``, and returns a flat tuple of tensors.

    The first ``positional`` of ``named`` are handed on by position.
    """

    def __init__(self, module: nn.Module, named: Mapping[str, Any], positional: int) -> None:
        super().__init__()
        self.module, self.named, self.positional = module, dict(named), positional

    def call(self, *tensors: Tensor) -> Any:
        """What the module itself returns."""
        rest = iter(tensors)
        values = [(name, next(rest) if isinstance(value, Tensor) else value) for name, value in self.named.items()]
        return self.module(*[value for _, value in values[: self.positional]], **dict(values[self.positional :]))

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(leaves(self.call(*tensors)))


def leaves(output: Any) -> Iterator[Tensor]:
    """The tensors in what a module returns, in the order of `structure`."""
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, dict | list | tuple):
        for value in output.values() if isinstance(output, dict) else output:
            yield from leaves(value)


def structure(output: Any) -> Any:
    """What a module returns as plain data, from which `rebuilt` makes it again: "tensor", or {KIND: parts}.

    What else an output class of transformers holds, such as a cache, is None in it.

    Raises:
        ComputekitError: it holds something that is no tensor.
    """
    if isinstance(output, Tensor):
        return "tensor"
    if isinstance(output, dict):
        if type(output) is dict:
            return {"dict": [[str(key), structure(value)] for key, value in output.items()]}
        return {"named": [[key, _or_none(value)] for key, value in output.items()]}
    if isinstance(output, list | tuple):
        return {"list" if isinstance(output, list) else "tuple": [structure(value) for value in output]}
    if output is None or isinstance(output, bool | int | float | str):
        return {"value": output}
    raise ComputekitError(f"the model returns a {type(output).__name__}, which no exported program gives")


def _or_none(value: Any) -> Any:
    try:
        return structure(value)
    except ComputekitError:
        return {"value": None}


def rebuilt(about: Any, tensors: Iterator[Tensor]) -> Any:
    """What a module returns, made of the ``tensors`` of a program: see `structure`."""
    if about == "tensor":
        return next(tensors)
    [(kind, parts)] = about.items()
    if kind == "value":
        return parts
    if kind in ("list", "tuple"):
        made = [rebuilt(part, tensors) for part in parts]
        return made if kind == "list" else tuple(made)
    values = {key: rebuilt(part, tensors) for key, part in parts}
    if kind == "dict":
        return values
    from transformers import utils

    return vars(utils)["ModelOutput"](**values)


def describe(module: nn.Module, named: Mapping[str, Any], positional: int, output: Any) -> dict[str, Any]:
    """How the module is called, as plain data for `Program`."""
    tensors = {name: value for name, value in named.items() if isinstance(value, Tensor)}
    return {
        "parameters": [[name, default] for name, default in parameters_of(module).items()],
        "inputs": [[name, str(value.dtype).removeprefix("torch.")] for name, value in tensors.items()],
        "filled": {name: _FILLED[name] for name in list(named)[positional:]},
        "fixed": {name: value for name, value in named.items() if name not in tensors},
        "output": structure(output),
    }


class Program(nn.Module):
    """Runs an exported program as the module that it was made from: same arguments, same kind of output.

    ``run`` takes and gives tensors on the CPU, in the order of the graph; ``about`` is what `describe` gave.
    """

    def __init__(self, run: Call, about: Mapping[str, Any]) -> None:
        super().__init__()
        self._run, self._inputs, self._filled = run, dict(about["inputs"]), about["filled"]
        self._taken, self._fixed, self._output = dict(about["parameters"]), about["fixed"], about["output"]
        self._shapes: list[list[int | None]] = about["shapes"]
        self.vocabulary: int | None = about["vocabulary"]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        given = {**dict(zip(self._taken, args, strict=False)), **kwargs}
        if len(args) > len(self._taken):
            raise TypeError(f"the program takes {len(self._taken)} inputs, not {len(args)}")
        for name, value in given.items():
            self._check(name, value)
        inputs = self._tensors(given)
        try:
            outputs = self._run(inputs)
        except Exception as error:  # runtimes have exceptions of their own; torch's modules raise this one
            raise RuntimeError((str(error).splitlines() or ["the exported program failed"])[0]) from error
        return rebuilt(self._output, iter(outputs))

    def _check(self, name: str, value: Any) -> None:
        """Raise TypeError for an argument that would change what the program computes and that it does not have."""
        if name in self._inputs or value is None:
            return
        if name in self._fixed:
            as_made = not isinstance(value, Tensor | str) and float(value) == float(self._fixed[name])
            wanted = f"with {name}={self._fixed[name]}"
        else:
            usual = (False, self._taken.get(name), True if name == "return_dict" else None)
            as_made = not isinstance(value, Tensor) and any(value is each or value == each for each in usual)
            wanted = f"with the inputs {', '.join(self._inputs)}, not with {name}"
        if not as_made:
            raise TypeError(
                f"the program was exported to be called {wanted}; --backend torch takes all that the code does"
            )

    def _tensors(self, given: Mapping[str, Any]) -> list[Tensor]:
        """The inputs in the order of the graph, in its types."""
        first = next((given[name] for name in self._inputs if isinstance(given.get(name), Tensor)), None)
        tensors = []
        for (name, dtype), shape in zip(self._inputs.items(), self._shapes, strict=True):
            value = given.get(name)
            if value is None and name in self._filled and first is not None:
                value = torch.full_like(first, self._filled[name])
            if not isinstance(value, Tensor):
                raise TypeError(f"the program needs the input {name}, a tensor of {dtype}")
            if value.device.type != "cpu":
                raise ComputekitError("the exported program runs on the CPU: --device cpu")
            if len(shape) != value.ndim or any(a not in (None, b) for a, b in zip(shape, value.shape, strict=True)):
                wanted = ", ".join("any" if size is None else str(size) for size in shape)
                raise RuntimeError(f"the program takes {name} of shape ({wanted}), not {tuple(value.shape)}")
            tensors.append(_cast(value.detach(), getattr(torch, dtype), name))
        return tensors


def _cast(value: Tensor, dtype: torch.dtype, name: str) -> Tensor:
    made = value.to(dtype)
    if value.is_floating_point() and not dtype.is_floating_point and not bool((made == value).all()):
        raise TypeError(f"the program takes whole numbers ({str(dtype).removeprefix('torch.')}) as {name}")
    return made
