"""FLOPs of any ``nn.Module``: exact for contractions, by operator and by module, forward and backward.

    from computekit import flops

    cost = flops.count(module, (torch.zeros(1, 3, 224, 224),))
    cost.forward, cost.backward, cost.macs, cost.by_module["layer1"].forward, cost.unknown

The module runs once on the meta device: no weight is read and nothing is computed, so a model of any size counts in
seconds. Where the code needs real values (data-dependent control flow, ``.item()``) it runs once on the CPU.

Conventions: a multiply-add is 2 FLOPs. ``forward`` and ``backward`` hold contractions only, which is what papers and
model cards report; element-wise work, norms and softmax are in ``forward_other`` and ``backward_other`` by the stated
formulas of `formulas`. Attention counts all query-key pairs; ``causal_saving`` is the part of ``forward`` that a causal
mask makes needless. An operator without a formula is in ``unknown``, with its share of all output elements.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch._ops import HigherOrderOperator
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from ..errors import ComputekitError
from . import copies, formulas
from .copies import nbytes, tensors

__all__ = ["Cost", "CountFailed", "FlopCount", "TooManyOperators", "UnknownOp", "count"]


class CountFailed(ComputekitError):
    """The module could not be run on the example inputs."""


class TooManyOperators(CountFailed):
    """The module runs more operators than `count` was allowed: one after the other for each token, most often."""


@dataclass
class Cost:
    """What one module (with its children) or one operator costs over the whole pass.

    ``forward`` and ``backward`` are contraction FLOPs, ``*_other`` the rest. ``activation_bytes`` is what the forward
    pass writes, ``moved_bytes`` what it reads and writes if every operator is its own kernel. Attention and recurrent
    layers are one kernel each, however they are decomposed; ``forward_kernels`` and ``backward_kernels`` count so.
    """

    calls: int = 0
    forward_kernels: int = 0
    backward_kernels: int = 0
    forward: int = 0
    backward: int = 0
    forward_other: int = 0
    backward_other: int = 0
    activation_bytes: int = 0
    moved_bytes: int = 0


@dataclass(frozen=True)
class UnknownOp:
    """An operator without a formula: how often it ran and its share (0..1) of all elements that operators wrote."""

    name: str
    calls: int
    share: float


@dataclass
class FlopCount:
    """The cost of one forward (and backward) pass for the batch that was given."""

    forward: int = 0
    backward: int | None = None
    forward_other: int = 0
    backward_other: int | None = None
    causal_saving: int = 0
    by_module: dict[str, Cost] = field(default_factory=dict)
    by_op: dict[str, Cost] = field(default_factory=dict)
    unknown: tuple[UnknownOp, ...] = ()
    ran_on: str = "meta"
    activation_bytes: int = 0
    moved_bytes: int = 0
    idle: dict[str, int] = field(default_factory=dict)
    """Modules none of whose parameters an operator met in the forward pass, with the number of these parameters."""

    @property
    def macs(self) -> int:
        """Multiply-accumulates of the forward pass: half its FLOPs."""
        return self.forward // 2

    @property
    def forward_causal(self) -> int:
        """``forward`` with causal attention counted at its unmasked pairs only."""
        return self.forward - self.causal_saving

    @property
    def total(self) -> int:
        """Contraction FLOPs of forward and, where it was counted, backward."""
        return self.forward + (self.backward or 0)


def count(
    module: nn.Module,
    example_inputs: Sequence[Any] | torch.Tensor,
    kwargs: Mapping[str, Any] | None = None,
    *,
    backward: bool = True,
    max_operators: int | None = None,
) -> FlopCount:
    """Count the FLOPs of ``module(*example_inputs, **kwargs)`` and of its backward pass.

    The module itself is left alone: a copy without weights runs, in the mode (train or eval) the module is in.
    The backward pass goes from all floating-point outputs to all parameters that require a gradient; it is None
    when ``backward`` is off, when no parameter requires one, or when an operator has none.

    Raises:
        CountFailed: the module runs neither on the meta device nor on the CPU.
        TooManyOperators: it runs more than ``max_operators``; a loop over thousands of tokens takes hours to count.
    """
    args = (example_inputs,) if isinstance(example_inputs, torch.Tensor) else tuple(example_inputs)
    first: Exception
    try:
        on_meta = _inputs_on("meta", args), _inputs_on("meta", dict(kwargs or {}))
        return _run(copies.on_meta(module), *on_meta, backward, "meta", max_operators)
    except TooManyOperators:
        raise
    except Exception as error:  # whatever user code raises for want of values
        first = error
    if any(p.is_meta for p in module.parameters()):
        raise CountFailed(f"the model cannot run without values: {_line(first)}; build it with real weights") from first
    try:
        return _run(copies.with_values(module), args, dict(kwargs or {}), backward, "cpu", max_operators)
    except TooManyOperators:
        raise
    except Exception as error:
        if backward:
            return count(module, example_inputs, kwargs, backward=False, max_operators=max_operators)
        raise CountFailed(f"the model does not run on these example inputs: {_line(error)}") from error


def _run(
    module: nn.Module, args: Any, kwargs: Any, backward: bool, ran_on: str, max_operators: int | None
) -> FlopCount:
    modules = _Modules(module)
    counter = _Counter(modules, max_operators)
    with warnings.catch_warnings(), _visible_attention(), modules:
        warnings.simplefilter("ignore")
        wants_grad = backward and any(p.requires_grad for p in module.parameters())
        with torch.set_grad_enabled(wants_grad), _FusedWatch(counter), counter:
            outputs = module(*args, **kwargs)
        outputs = getattr(outputs, "logits", outputs)
        ends = [leaf for leaf in tree_leaves(outputs) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
        if ends:
            seeds = [torch.ones_like(end) for end in ends]
            counter.phase = "backward"
            with counter:
                torch.autograd.backward(ends, seeds)
    return counter.result(bool(ends), ran_on)


class _Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every ATen operator with its shapes."""

    supports_higher_order_operators = True

    def __init__(self, where: _Modules, max_operators: int | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
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

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.max_operators is not None and self.total.calls >= self.max_operators:
            raise TooManyOperators(f"the model runs more than {self.max_operators:,} operators")
        if isinstance(func, HigherOrderOperator):
            return self._higher_order(func, args, kwargs or {})
        if self.phase == "forward":
            self.met.update(copies.identity(t) for t in tensors(args))
        out = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__ if hasattr(func, "overloadpacket") else str(func)
        contraction = formulas.contraction(name, args, out)
        other = formulas.other(func, name, args, out) if contraction is None else 0
        written = 0 if func.is_view else sum(t.numel() for t in tensors(out))
        self.elements += written
        if other is None:
            gap = self.gaps.setdefault(name, [0, 0])
            gap[0] += 1
            gap[1] += written
        moved, kept = 0, 0
        if not func.is_view and self.phase == "forward" and not self.inside_fused:
            kept = sum(nbytes(t) for t in tensors(out))
            moved = kept + sum(nbytes(t) for t in tensors(args))
        self._add(name, contraction or 0, other or 0, kept, moved, not func.is_view and not self.inside_fused)
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
        targets = [self.total, self.ops.setdefault(name, Cost())]
        targets += [self.modules.setdefault(parent, Cost()) for parent in self.where.parents(self.phase)]
        for cost in targets:
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
            by_module=self.modules,
            by_op=self.ops,
            unknown=tuple(UnknownOp(name, n, size / elements) for name, (n, size) in sorted(self.gaps.items())),
            ran_on=ran_on,
            idle=self.where.idle(self.met),
            activation_bytes=self.total.activation_bytes,
            moved_bytes=self.total.moved_bytes,
        )


class _Modules:
    """Which module an operator belongs to: the call stack going forward, the tagged autograd nodes going back.

    After each module's forward, the autograd nodes between its outputs and what its children made are its own; each is
    tagged with the module's name. Hooks are removed on exit, so nothing accumulates over several counts.
    """

    def __init__(self, root: nn.Module) -> None:
        self.root = root
        self.names = {id(module): name for name, module in root.named_modules()}
        self.stack: list[str] = []
        self.handles: list[Any] = []

    def __enter__(self) -> None:
        for module in self.root.modules():
            if isinstance(module, torch.jit.ScriptModule):
                continue  # takes no hooks: a TorchScript program counts as a whole
            self.handles.append(module.register_forward_pre_hook(self._enter))
            self.handles.append(module.register_forward_hook(self._leave))

    def __exit__(self, *_: object) -> None:
        for handle in self.handles:
            handle.remove()

    def parents(self, phase: str) -> list[str]:
        """Names of the modules, outermost ("") first, that the running operator belongs to."""
        if phase == "forward":
            owner = self.stack[-1] if self.stack else ""
        else:
            node: Any = torch._C._current_autograd_node()
            owner = node.metadata.get("computekit_module", "") if node is not None else ""
        parts = owner.split(".") if owner else []
        return ["", *(".".join(parts[: i + 1]) for i in range(len(parts)))]

    def idle(self, met: set[int]) -> dict[str, int]:
        """The outermost modules none of whose parameters is among ``met``, with their parameters."""
        found: dict[str, int] = {}
        for name, module in self.root.named_modules():
            parameters = list(module.parameters())
            if name.startswith(tuple(f"{outer}." for outer in found)) or not parameters:
                continue
            if met.isdisjoint(map(copies.identity, parameters)):
                found[name] = sum(p.numel() for p in parameters)
        return found

    def _enter(self, module: nn.Module, _args: Any) -> None:
        self.stack.append(self.names[id(module)])

    def _leave(self, _module: nn.Module, _args: Any, output: Any) -> None:
        name = self.stack.pop()
        todo: list[Any] = [leaf.grad_fn for leaf in tensors(output) if leaf.grad_fn is not None]
        while todo:
            node = todo.pop()
            if node is None or "computekit_module" in node.metadata:
                continue
            node.metadata["computekit_module"] = name
            todo.extend(parent for parent, _ in node.next_functions)


_RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")


class _FusedWatch(TorchFunctionMode):
    """Sees attention and recurrent layers before they are decomposed into plain products.

    Each moves its operands and results once, as the kernel that libraries have for it; and a causal mask, invisible
    after decomposition, saves products.
    """

    def __init__(self, counter: _Counter) -> None:
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


def _inputs_on(device: str, inputs: Any) -> Any:
    return tree_map_only(torch.Tensor, lambda t: t.to(device), inputs)


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
