"""Modules that compute in integers: layer by layer, or as a whole where their code can be traced.

`attach` gives a module, whose layers hold int8 weights and the grids of their activations, a subclass of its own class
that runs the integer kernels: for calls in eval mode, on the CPU, without gradients. Every other call runs the module's
own code on dequantized weights. Parameters, buffers and their names stay as they are.

Importing this imports torch.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_map_only

from . import int8_static
from .int8_plan import Fusion, Plan
from .int8_static import Affine, IntegerLayer
from .int8_trace import FORWARD, Untraceable, inputs_of


@dataclass(frozen=True)
class Grids:
    """The grids of a layer: of what goes in and, if it may be part of a larger program, of what comes out.

    What comes out includes what the kernel takes in with the layer: see `int8_plan`. A layer of a module whose code
    cannot be traced has none.
    """

    input: Affine
    output: Affine | None = None

    def store(self, layer: str) -> list[tuple[str, Tensor]]:
        """The plain tensors of a file for the layer with this path."""
        prefix = f"{layer}." if layer else ""
        output = self.output.store(f"{prefix}output") if self.output else []
        return self.input.store(f"{prefix}input") + output

    @classmethod
    def of(cls, layer: nn.Module) -> Grids | None:
        """What a layer that was loaded has in its buffers; None if its activations have no grids."""
        buffers, weight = layer._buffers, layer._parameters.get("weight")
        scale = buffers.get("weight_scale")
        if weight is None or weight.dtype != torch.int8 or scale is None or scale.shape[1] != 1:
            return None
        if "weight_zero_point" in buffers or not int8_static.supports(layer):
            return None
        found = {}
        for side in ("input", "output"):
            scale = buffers.get(f"{side}_scale")
            if scale is not None:
                found[side] = Affine.restore(scale, buffers.get(f"{side}_zero_point"))
        return cls(**found) if "input" in found else None


def attach(module: nn.Module) -> None:
    """Let ``module`` compute in integers, in place: each layer by itself, and what can be traced as a whole.

    On a CPU that cannot, it stays as it is, with a warning: it computes in floats on the same weights.
    """
    if int8_static.available():
        warnings.warn(f"static activations: {int8_static.available()}; layers compute in floats", stacklevel=2)
        return
    for layer in [part for part in module.modules() if Grids.of(part)]:
        _swap(layer, None)
    _attach_whole(module)


def _attach_whole(module: nn.Module) -> None:
    grids = _grids(module)
    if "" in grids or not any(each.output for each in grids.values()):
        return
    try:
        _swap(module, _build(module))
    except Untraceable:
        for child in module.children():
            _attach_whole(child)


def _swap(module: nn.Module, program: nn.Module | None) -> None:
    if not hasattr(type(module), FORWARD):
        module.__class__ = _integer_class(type(module))  # type: ignore[arg-type]
    module.__dict__["_int8"] = _State(program)


def _grids(module: nn.Module) -> dict[str, Grids]:
    found = {name: Grids.of(layer) for name, layer in module.named_modules(remove_duplicate=False)}
    return {name: grids for name, grids in found.items() if grids is not None}


@dataclass
class _State:
    """What belongs to one module and must not go into copies of it: the kernels, packed for this CPU."""

    program: nn.Module | None = None
    parts: tuple[nn.Module, ...] = ()  # of the module; a hook on one of them is to be called

    def __deepcopy__(self, memo: object) -> _State:
        return _State()


@functools.cache
def _integer_class(base: type[nn.Module]) -> type[nn.Module]:
    """A subclass of ``base`` whose calls run a program of integer kernels, built when it is first needed."""
    names = inputs_of(base)

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        inputs = (*args, *(kwargs[name] for name in names[len(args) :] if name in kwargs))
        complete = len(inputs) == len(names) == len(args) + len(kwargs)
        state = self.__dict__["_int8"]
        state.parts = state.parts or tuple(self.modules())[1:]
        if not complete or not _runs_integers(self, state.parts, inputs):
            return base.forward(self, *args, **kwargs)
        if state.program is None:
            state.program = _build(self)
        return _laid_out(state.program(*inputs))

    def _apply(self: Any, *args: Any, **kwargs: Any) -> Any:
        self.__dict__["_int8"] = _State()  # for another type or device
        return base._apply(self, *args, **kwargs)  # type: ignore[no-untyped-call]

    def load_state_dict(self: Any, *args: Any, **kwargs: Any) -> Any:
        self.__dict__["_int8"] = _State()
        return base.load_state_dict(self, *args, **kwargs)

    members = {FORWARD: base.forward, "forward": forward, "_apply": _apply, "load_state_dict": load_state_dict}
    return type(f"Integer{base.__name__}", (base,), members)


def _runs_integers(module: nn.Module, parts: tuple[nn.Module, ...], inputs: tuple[Any, ...]) -> bool:
    """Whether a call of ``module`` may run integer kernels; else its own code runs, for others to look into."""
    if module.training or torch.compiler.is_compiling():
        return False
    if torch._C._len_torch_dispatch_stack() or torch._C._get_tracing_state():
        return False
    for value in inputs:
        if type(value) is not Tensor or value.device.type != "cpu" or value.requires_grad or not value.numel():
            return False
    return not any(part._forward_hooks or part._forward_pre_hooks for part in parts)


def _laid_out(output: Any) -> Any:
    """Tensors as the code around the module expects them in memory, which may make views of them."""
    if isinstance(output, Tensor):
        return output.contiguous()
    return tree_map_only(Tensor, Tensor.contiguous, output)


class _ToIntegers(nn.Module):
    def __init__(self, grid: Affine) -> None:
        super().__init__()
        self.grid = grid

    def forward(self, x: Tensor) -> Tensor:
        return self.grid.quantize(x)


class _ToFloats(nn.Module):
    def __init__(self, grid: Affine, dtype: torch.dtype) -> None:
        super().__init__()
        self.grid, self.dtype = grid, dtype

    def forward(self, x: Any) -> Any:
        return self.grid.dequantize(x, self.dtype) if isinstance(x, Tensor) else tuple(map(self.forward, x))


class _Shift(_ToFloats):
    """For an average of integers."""

    def forward(self, x: Any) -> Any:
        return self.grid.shift(x).to(self.dtype)


class _MaxPool(nn.Module):
    """Max pooling of bytes: the larger of shifted slices, one axis after the other.

    PyTorch's own kernel takes bytes only where an image has less than 256 places, and is slower there too.
    """

    def __init__(self, axes: int, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil: bool) -> None:
        super().__init__()

        def each(value: Any) -> Any:
            return value if isinstance(value, (tuple, list)) else (value,) * axes

        self.ceil = ceil
        self.axes = list(
            zip(range(-axes, 0), each(kernel), each(kernel if stride in (None, ()) else stride), each(padding),
                each(dilation), strict=True)
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        """uint8 (..., places) or (..., height, width) -> the same with fewer places."""
        ahead: list[int] = []
        counts = []
        for axis, kernel, stride, padding, dilation in reversed(self.axes):
            size, span = x.shape[axis], dilation * (kernel - 1) + 1
            count = (size + 2 * padding - span + (stride - 1 if self.ceil else 0)) // stride + 1
            if self.ceil and (count - 1) * stride >= size + padding:
                count -= 1  # a window must not begin behind the end
            counts.append(count)
            ahead += [padding, max(0, (count - 1) * stride + span - size - padding)]
        if any(ahead):
            x = torch.nn.functional.pad(x, ahead)  # with the least of all bytes
        for (axis, kernel, stride, _, dilation), count in zip(reversed(self.axes), counts, strict=True):
            lines = x.movedim(axis, 0)
            ends = (count - 1) * stride + 1
            shifted = [lines[start : start + ends : stride] for start in range(0, kernel * dilation, dilation)]
            x = functools.reduce(torch.maximum, shifted).movedim(0, axis)
        return x


def _build(module: nn.Module) -> nn.Module:
    """The program of ``module``; raises Untraceable."""
    grids = _grids(module)
    dtype = next((t.dtype for t in module.state_dict().values() if t.is_floating_point()), torch.float32)
    if "" in grids:
        return nn.Sequential(_ToIntegers(grids[""].input), _kernel(module, grids[""].input, None, dtype)).eval()
    plan = Plan(module, {name: each.output is not None for name, each in grids.items()})
    return _Builder(plan, grids, dtype).run()


def _kernel(layer: nn.Module, input: Affine, result: Affine | None, dtype: torch.dtype, **fused: Any) -> IntegerLayer:
    weight: Tensor = layer._parameters["weight"]  # type: ignore[assignment]
    scale: Any = layer.weight_scale
    return IntegerLayer(layer, weight, scale, input, result, dtype=dtype, **fused)


class _Builder:
    """Writes the plan's graph anew: each value as integers, as floats, or as both where both are needed."""

    def __init__(self, plan: Plan, grids: Mapping[str, Grids], dtype: torch.dtype) -> None:
        self.plan, self.grids, self.dtype = plan, grids, dtype
        self.graph = fx.Graph()
        self.parts: dict[str, Any] = dict(plan.constants)
        self.integers: dict[fx.Node, tuple[fx.Node, Affine]] = {}
        self.rounded: dict[fx.Node, tuple[fx.Node, Affine]] = {}  # floats that some layers take as integers
        self.floats: dict[fx.Node, fx.Node] = {}
        self.position = {node: index for index, node in enumerate(plan.graph.nodes)}

    def run(self) -> fx.GraphModule:
        results = self.plan.by_result()
        inside = {node for fusion in results.values() for node in fusion.nodes[:-1]}
        for node in self.plan.graph.nodes:
            if node in results:
                self._kernel(results[node])
            elif node not in inside:
                self._other(node)
        self.graph.lint()
        program = fx.GraphModule(self.parts, self.graph, "Int8Program")
        program.eval()
        return program

    def _kernel(self, fusion: Fusion) -> None:
        grids = self.grids[fusion.name]
        x, grid = self._as_integers(fusion.input, grids.input)
        inputs, addend = [x], None
        if fusion.addend is not None:
            other, addend = self._as_integers(fusion.addend, self._grid_for(fusion.addend))
            inputs.append(other if self._may_be_overwritten(fusion) else self.graph.call_method("clone", (other,)))
        result = grids.output if fusion.in_integers else None
        made = _kernel(
            self.plan.modules[fusion.name], grid, result, self.dtype, norm=fusion.norm, addend=addend,
            activation=fusion.activation,
        )  # fmt: skip
        y = self._call(made, *inputs)
        if result is None:
            self.floats[fusion.last] = y
        else:
            self.integers[fusion.last] = y, result

    def _grid_for(self, node: fx.Node) -> Affine:
        """The grid of a value that is the input of an integer layer; not used where it is integers already."""
        users = (self.plan.fusions[user].name for user in node.users if user in self.plan.fusions)
        return next((self.grids[name].input for name in users), Affine(1.0, 0))

    def _may_be_overwritten(self, fusion: Fusion) -> bool:
        """Whether the kernel that adds a value is the last to read it, so that it may put the sum in its place."""
        assert fusion.addend is not None
        end, results = self.position[fusion.last], self.plan.by_result()
        made_by_kernel = fusion.addend in results
        readers = [user for user in fusion.addend.users if user is not fusion.sum]
        return made_by_kernel and all(self._last_read(user) < end for user in readers)

    def _last_read(self, user: fx.Node) -> float:
        """When a layer that takes a value reads it; never, as far as is known, for anything else: it may be a view."""
        fusion = self.plan.fusions.get(user)
        return self.position[fusion.last] if fusion is not None else float("inf")

    def _other(self, node: fx.Node) -> None:
        inputs = node.all_input_nodes
        first = self.integers.get(inputs[0]) if inputs else None
        if self.plan.asks_shape(node):
            self.floats[node] = self.graph.node_copy(node, self._as_is)
        elif first is None:
            self._copy(node)
        elif self.plan.moves(node):
            self.integers[node] = self._move(node, first[1]), first[1]
        elif node.target is torch.cat and all(self.integers.get(each, (None, None))[1] == first[1] for each in inputs):
            self.integers[node] = self.graph.node_copy(node, lambda each: self.integers[each][0]), first[1]
        elif self.plan.averages(node) and len(inputs) == 1:
            self.floats[node] = self._call(_Shift(first[1], self.dtype), self._average(node, first[0]))
        else:
            self._copy(node)

    def _average(self, node: fx.Node, x: fx.Node) -> fx.Node:
        """The average that ``node`` takes, of the integers ``x``, in floats that count steps."""
        if self.plan.averages_all(node):
            return self.graph.call_method("mean", (x, (-2, -1)), {"keepdim": True, "dtype": torch.float32})
        raw = self.graph.call_method("float", (x,))
        return self._copied(node, lambda each: raw)

    def _move(self, node: fx.Node, grid: Affine) -> fx.Node:
        x = self.integers[node.all_input_nodes[0]][0]
        if self.plan.is_relu(node):
            return self.graph.call_function(torch.clamp_min, (x, grid.zero_point))
        if self.plan.is_max_pool(node):
            return self._call(_max_pool(node, self.plan.modules), x)
        return self._copied(node, lambda each: self._as_is(each))

    def _copy(self, node: fx.Node) -> None:
        self.floats[node] = self._copied(node, self._as_floats)

    def _copied(self, node: fx.Node, mapped: Callable[[fx.Node], fx.Node]) -> fx.Node:
        if node.op == "call_module":
            self.parts[str(node.target)] = self.plan.modules[str(node.target)]
        elif node.op == "get_attr" and node.target not in self.parts:
            owner, _, attribute = str(node.target).rpartition(".")
            self.parts[str(node.target)] = getattr(self.plan.modules[owner], attribute)
        copied = self.graph.node_copy(node, mapped)
        if copied.op == "call_method":  # views depend on the layout in memory, which is another here
            copied.target = {"view": "reshape", "view_as": "reshape_as"}.get(str(node.target), node.target)
        return copied

    def _as_integers(self, node: fx.Node, grid: Affine) -> tuple[fx.Node, Affine]:
        """The value on its own grid if it has one, else rounded to ``grid``, once for all who want it on that."""
        if node in self.integers:
            return self.integers[node]
        if node not in self.rounded:
            self.rounded[node] = self._call(_ToIntegers(grid), self.floats[node]), grid
        return self.rounded[node]

    def _as_floats(self, node: fx.Node) -> fx.Node:
        if node not in self.floats:
            integers, grid = self.integers[node]
            self.floats[node] = self._call(_ToFloats(grid, self.dtype), integers)
        return self.floats[node]

    def _as_is(self, node: fx.Node) -> fx.Node:
        return self.integers[node][0] if node in self.integers else self.floats[node]

    def _call(self, part: nn.Module, *inputs: Any) -> fx.Node:
        name = f"int8_{len(self.parts)}"
        self.parts[name] = part
        return self.graph.call_module(name, inputs)


def _max_pool(node: fx.Node, modules: Mapping[str, nn.Module]) -> _MaxPool:
    if node.op == "call_module":
        pool: Any = modules[str(node.target)]
        axes = 1 if isinstance(pool, nn.MaxPool1d) else 2
        return _MaxPool(axes, pool.kernel_size, pool.stride, pool.padding, pool.dilation, pool.ceil_mode)
    names = ("kernel_size", "stride", "padding", "dilation", "ceil_mode")
    given = {**dict(zip(names, node.args[1:], strict=False)), **node.kwargs}
    values: list[Any] = [given.get(name, other) for name, other in zip(names, (None, None, 0, 1, False), strict=True)]
    return _MaxPool(1 if node.target is torch.nn.functional.max_pool1d else 2, *values)
