"""FLOPs of any ``nn.Module``: exact for contractions, by operator and by module, forward and backward.

    from computekit import flops

    cost = flops.count(module, (torch.zeros(1, 3, 224, 224),))
    cost.forward, cost.backward, cost.macs, cost.by_module["layer1"].forward, cost.unknown

The module runs once on the meta device: no weight is read and nothing is computed, so a model of any size counts in
seconds. Where the code looks at values (data-dependent control flow, ``.item()``) it runs again with those that do not
depend on weights; where it looks at others, once on the CPU.

Conventions: a multiply-add is 2 FLOPs. ``forward`` and ``backward`` hold contractions only, which is what papers and
model cards report; element-wise work, norms and softmax are in ``forward_other`` and ``backward_other`` by the stated
formulas of `formulas`. Attention counts all query-key pairs; ``causal_saving`` is the part of ``forward`` that a causal
mask makes needless. An operator without a formula is in ``unknown``, with its share of all output elements.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map_only

from . import copies, values
from .cost import Cost, CountFailed, FlopCount, TooManyOperators, UnknownOp
from .counter import Counter, FusedWatch
from .owners import Owners

__all__ = ["Cost", "CountFailed", "FlopCount", "TooManyOperators", "UnknownOp", "count"]


def count(
    module: nn.Module,
    example_inputs: Sequence[Any] | torch.Tensor,
    kwargs: Mapping[str, Any] | None = None,
    *,
    method: str = "forward",
    backward: bool = True,
    max_operators: int | None = None,
) -> FlopCount:
    """Count the FLOPs of ``module(*example_inputs, **kwargs)`` and of its backward pass.

    ``method`` names another method of the module to call in the place of its ``forward``.
    The module itself is left alone: a copy without weights runs, in the mode (train or eval) the module is in.
    The backward pass goes from all floating-point outputs to all parameters that require a gradient; it is None
    when ``backward`` is off, when no parameter requires one, or when an operator has none.

    Raises:
        CountFailed: the module runs neither on the meta device nor on the CPU.
        TooManyOperators: it runs more than ``max_operators``; a loop over thousands of tokens takes hours to count.
    """
    args = (example_inputs,) if isinstance(example_inputs, torch.Tensor) else tuple(example_inputs)
    given = args, dict(kwargs or {})
    shapes = tree_map_only(torch.Tensor, lambda t: t.to("meta"), given)
    errors: list[Exception] = []
    ways: tuple[tuple[Any, Any], ...] = ((shapes, None), (given, values.call))
    for (positional, named), call in ways:
        try:
            return _run(copies.on_meta(module), method, positional, named, backward, "meta", max_operators, call)
        except TooManyOperators:
            raise
        except Exception as error:  # whatever user code raises for want of values
            errors.append(error)
    if any(p.is_meta for p in module.parameters()):
        said = _line(errors[-1])
        raise CountFailed(f"the model does not run on these inputs without weights: {said}") from errors[-1]
    try:
        return _run(copies.with_values(module), method, *given, backward, "cpu", max_operators)
    except TooManyOperators:
        raise
    except Exception as error:
        if backward:
            return count(module, example_inputs, kwargs, method=method, backward=False, max_operators=max_operators)
        raise CountFailed(f"the model does not run on these example inputs: {_line(error)}") from error


def _run(
    module: nn.Module, method: str, args: Any, kwargs: Any, backward: bool, ran_on: str, max_operators: int | None,
    call: Callable[[Any, Any, Any], Any] | None = None,
) -> FlopCount:  # fmt: skip
    modules = Owners(module)
    counter = Counter(modules, max_operators, call)
    with warnings.catch_warnings(), _visible_attention(), modules:
        warnings.simplefilter("ignore")
        wants_grad = backward and any(p.requires_grad for p in module.parameters())
        with torch.set_grad_enabled(wants_grad), FusedWatch(counter), counter:
            outputs = (module if method == "forward" else getattr(module, method))(*args, **kwargs)
        named = outputs.items() if isinstance(outputs, Mapping) else [("", outputs)]
        shapes = {name: tuple(tuple(t.shape) for t in copies.tensors(value)) for name, value in named}
        outputs = getattr(outputs, "logits", outputs)
        ends = [leaf for leaf in tree_leaves(outputs) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
        if ends:
            seeds = [torch.ones_like(end) for end in ends]
            counter.phase = "backward"
            with counter:
                torch.autograd.backward(ends, seeds)
    return replace(counter.result(bool(ends), ran_on), outputs=shapes)


@contextlib.contextmanager
def _visible_attention() -> Iterator[None]:
    """Switch off the fused encoder kernels of eval mode, which hide all products in one operator, and the compiler
    that flexible attention calls, which does not run where operators are watched.
    """
    from torch.nn.attention import flex_attention

    fused, compiled = torch.backends.mha.get_fastpath_enabled(), "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG"
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with mock.patch.object(flex_attention, compiled, True):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
