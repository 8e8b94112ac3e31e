"""Counts operators as they run: a dispatch mode that sees each of them with its shapes.

Importing this imports torch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._ops import HigherOrderOperator
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from . import effects, formulas
from .copies import identity, nbytes, tensors
from .cost import Cost, FlopCount, TooManyOperators, UnknownOp
from .owners import Owners, rolled_up


class Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every ATen operator with its shapes."""

    supports_higher_order_operators = True

    def __init__(self, where: Owners, max_operators: int | None, call: Callable[[Any, Any, Any], Any] | None) -> None:
        """``call`` runs an operator in its own way."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.call = call or (lambda func, args, kwargs: func(*args, **kwargs))
        self.where = where
        self.max_operators = max_operators
        self.phase = "forward"
        self.inside_fused = False
        self.total = Cost()
        self.modules: dict[str, Cost] = {}
        self.ops: dict[str, Cost] = {}
        self.causal_saving = 0
        self.gaps: dict[str, list[int]] = {}
        self.elements = 0
        self.met: set[int] = set()
        self.effects: dict[Any, effects.Effect] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.max_operators is not None and self.total.calls >= self.max_operators:
            raise TooManyOperators(f"the model runs more than {self.max_operators:,} operators")
        if isinstance(func, HigherOrderOperator):
            return self._higher_order(func, args, kwargs or {})
        if self.phase == "forward":
            self.met.update(identity(t) for t in tensors(args))
        key = effects.signature(func, args, kwargs)
        effect = self.effects.get(key)
        if effect is None:
            out = self.call(func, args, kwargs or {})
            effect = effects.effect(func, args, out)
            if key is not None and effect.shapes is not None:
                self.effects[key] = effect
        else:
            out = effect.result()
        self.elements += effect.written
        if effect.other is None:
            gap = self.gaps.setdefault(effect.name, [0, 0])
            gap[0] += 1
            gap[1] += effect.written
        moves = not effect.is_view and not self.inside_fused
        kept = effect.kept if moves and self.phase == "forward" else 0
        moved = effect.kept + effect.read if moves and self.phase == "forward" else 0
        self._add(effect.name, effect.contraction, effect.other or 0, kept, moved, moves)
        return out

    def _higher_order(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Control flow, scans and flexible attention: what they call is counted as it runs."""

        def watched(function: Any) -> Any:
            def call(*args: Any, **kwargs: Any) -> Any:
                with self:
                    return function(*args, **kwargs)

            return call if callable(function) else function

        name = func.name()
        attention = formulas.contraction(name, args, None)
        if attention is not None:  # its functions run once for all pairs, under vmap
            out = func(*args, **kwargs)
            moved = sum(nbytes(t) for t in tensors((args[:3], out)))
            self._add(name, attention, 0, sum(nbytes(t) for t in tensors(out)), moved, True)
            return out
        return func(*(watched(arg) for arg in args), **{key: watched(arg) for key, arg in kwargs.items()})

    def _add(self, name: str, contraction: int, other: int, kept: int, moved: int, kernel: bool) -> None:
        owner = self.where.owner(self.phase)
        for cost in (self.total, self.ops.setdefault(name, Cost()), self.modules.setdefault(owner, Cost())):
            cost.calls += 1
            cost.activation_bytes += kept
            cost.moved_bytes += moved
            if self.phase == "forward":
                cost.forward_kernels += kernel
                cost.forward += contraction
                cost.forward_other += other
            else:
                cost.backward_kernels += kernel
                cost.backward += contraction
                cost.backward_other += other

    @contextlib.contextmanager
    def fused(self, name: str, operands: Any) -> Iterator[list[Any]]:
        """Count the bytes of what runs inside as one kernel's: what it takes in and what it gives."""
        results: list[Any] = []
        self.inside_fused = True
        try:
            yield results
        finally:
            self.inside_fused = False
        written = sum(nbytes(t) for t in tensors(results))
        self._add(name, 0, 0, written, written + sum(nbytes(t) for t in tensors(operands)), True)

    def result(self, went_back: bool, ran_on: str) -> FlopCount:
        elements = max(self.elements, 1)
        return FlopCount(
            forward=self.total.forward,
            backward=self.total.backward if went_back else None,
            forward_other=self.total.forward_other,
            backward_other=self.total.backward_other if went_back else None,
            causal_saving=self.causal_saving,
            by_module=rolled_up(self.modules),
            by_op=self.ops,
            unknown=tuple(UnknownOp(name, n, size / elements) for name, (n, size) in sorted(self.gaps.items())),
            ran_on=ran_on,
            idle=self.where.idle(self.met),
            without_gradient=self.where.without_gradient(self.met) if went_back else {},
            activation_bytes=self.total.activation_bytes,
            moved_bytes=self.total.moved_bytes,
        )


_RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")


class FusedWatch(TorchFunctionMode):
    """Sees attention and recurrent layers before they are decomposed into plain products.

    Each moves its operands and results once, as the kernel that libraries have for it; and a causal mask, invisible
    after decomposition, saves products.
    """

    def __init__(self, counter: Counter) -> None:
        super().__init__()
        self.counter = counter

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.nn.functional.scaled_dot_product_attention:
            q, k, v = (*args, *(kwargs[name] for name in ("query", "key", "value") if name in kwargs))[:3]
            if kwargs.get("is_causal", args[5] if len(args) > 5 else False):
                length, keys = int(q.shape[-2]), int(k.shape[-2])
                full = formulas.attention_flops(q.shape, k.shape, v.shape)
                self.counter.causal_saving += full - full * formulas.causal_pairs(length, keys) // (length * keys)
            with self.counter.fused("scaled_dot_product_attention", (q, k, v)) as results:
                results.append(func(*args, **kwargs))
            return results[0]
        if getattr(func, "__name__", "") in _RECURRENT and not self.counter.inside_fused:
            with self.counter.fused(func.__name__, (args, kwargs)) as results:
                results.append(func(*args, **kwargs))
            return results[0]
        return func(*args, **kwargs)
