"""Fixed grids for the activations of layers, from what they compute on calibration data.

Importing this imports torch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_leaves

from computekit import ComputekitError
from computekit.evaluation import forward
from computekit.models import int8_static
from computekit.models.int8_plan import Plan
from computekit.models.int8_program import Grids
from computekit.models.int8_static import Affine
from computekit.models.int8_trace import Untraceable, inputs_of

from .calibration import watching
from .observers import RANGES, Histogram

_SAME = 1e-3  # of the largest output: how far a traced module may be from its own code


def layers_of(module: nn.Module) -> list[str]:
    """Paths of the layers of ``module`` that integer kernels can replace."""
    return [name for name, layer in module.named_modules() if int8_static.supports(layer)]


def calibrate(
    module: nn.Module, layers: Collection[str], batches: Iterable[Tensor], observer: str
) -> tuple[dict[str, Grids], list[str]]:
    """Run ``module`` over ``batches`` and choose grids for ``layers``, by path; those that never ran are left out.

    ``observer`` is a name in `observers.RANGES`. Also returned: paths of the modules that compute layer by layer, with
    floats in between, since their code cannot be traced.

    Raises:
        ComputekitError: the model cannot take the data, or a value is NaN or infinite.
    """
    module.eval()
    parts, untraced = _parts(module, layers)
    batches = list(batches)
    watches = [_Watch(module, path, plan) for path, plan in parts.items()]
    with torch.no_grad(), ExitStack() as stack:
        for watch in watches:
            stack.enter_context(watch.attached())
        _run(module, batches)
    for watch in watches:
        if watch.differs:
            untraced.append(watch.path)
    found: dict[str, Grids] = {}
    for watch in watches:
        if not watch.differs:
            found.update(watch.grids(RANGES[observer]))
    alone = [name for name in layers if name not in found]
    with torch.no_grad(), watching(module, alone, lambda _name, _layer: Histogram()) as seen:
        if alone:
            _run(module, batches)
    found.update({name: Grids(Affine.over(*RANGES[observer](each))) for name, each in seen.items()})
    return {name: found[name] for name in layers if name in found}, untraced


@contextmanager
def rounded_inputs(module: nn.Module, grids: Mapping[str, Grids]) -> Iterator[None]:
    """While it lasts, the layers of ``module`` at these paths get inputs that are rounded to their grids."""

    def hook(grid: Affine) -> Callable[..., Any]:
        def rounded(layer: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
            return (grid.dequantize(grid.quantize(args[0]), args[0].dtype), *args[1:])

        return rounded

    handles = [module.get_submodule(name).register_forward_pre_hook(hook(each.input)) for name, each in grids.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _run(module: nn.Module, batches: Iterable[Tensor]) -> None:
    for batch in batches:
        forward(module, batch, "the model to calibrate")


def _parts(module: nn.Module, layers: Collection[str], path: str = "") -> tuple[dict[str, Plan], list[str]]:
    """The largest parts of ``module`` that can be traced, by path, and the paths of what cannot."""
    prefix = f"{path}." if path else ""
    inside = {name.removeprefix(prefix): True for name in layers if name.startswith(prefix) and name != path}
    if not inside:
        return {}, []
    try:
        return {path: Plan(module, inside)}, []
    except Untraceable:
        found, untraced = {}, [path]
    for name, child in module.named_children():
        below, not_below = _parts(child, layers, prefix + name)
        found.update(below)
        untraced += not_below
    return found, untraced


class _Watch:
    """Histograms of what the layers of one traced part take in and give, one for all values that share a grid."""

    def __init__(self, root: nn.Module, path: str, plan: Plan) -> None:
        self.path, self.plan = path, plan
        self.module = root.get_submodule(path)
        self.names = inputs_of(type(self.module))
        self.differs = False
        self.seen: dict[Hashable, Histogram] = {}
        self._parents: dict[Hashable, Hashable] = {}
        for name, source, result in plan.sites():
            self._join(("input", name), source)
            self._join(("output", name), result)
        for first, *others in plan.shared():
            for node in others:
                self._join(first, node)
        self._watched = {node for node in plan.graph.nodes if node in self._parents or node in self._parents.values()}
        self._expected: Any = None

    def _group(self, key: Hashable) -> Hashable:
        while key in self._parents:
            key = self._parents[key]
        return key

    def _join(self, one: Hashable, other: Hashable) -> None:
        one, other = self._group(one), self._group(other)
        if one != other:
            self._parents[one] = other

    @contextmanager
    def attached(self) -> Iterator[None]:
        """While it lasts, calls of the part are watched."""
        handles = [
            self.module.register_forward_pre_hook(self._before, with_kwargs=True),
            self.module.register_forward_hook(self._after, with_kwargs=True),
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def grids(self, choose: Callable[[Histogram], tuple[float, float]]) -> dict[str, Grids]:
        """The grids of the layers that ran, by their path from the root."""
        ranges = {key: Affine.over(*choose(histogram)) for key, histogram in self.seen.items()}
        prefix = f"{self.path}." if self.path else ""
        found = {}
        for name, _, _ in self.plan.sites():
            input = ranges.get(self._group(("input", name)))
            if input is not None:
                found[prefix + name] = Grids(input, ranges.get(self._group(("output", name))))
        return found

    def show(self, node: fx.Node, value: Any) -> None:
        """Take in the value of a node of the graph."""
        if node not in self._watched or self.differs:
            return
        _check_finite(value, self.path)
        self.seen.setdefault(self._group(node), Histogram())(value)

    def _before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        inputs = (*args, *(kwargs[name] for name in self.names[len(args) :] if name in kwargs))
        if len(inputs) != len(self.names) or len(args) + len(kwargs) != len(inputs):
            self.differs = True  # called with more than what was traced
            return
        copies = (value.clone() if isinstance(value, Tensor) else value for value in inputs)
        self._expected = _Interpreter(self).run(*copies)

    def _after(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        if self.differs:
            return
        pairs = zip(tree_leaves(self._expected), tree_leaves(output), strict=False)
        tensors = [(ours, theirs) for ours, theirs in pairs if isinstance(theirs, Tensor) and theirs.numel()]
        self.differs = not all(_close(ours, theirs) for ours, theirs in tensors)


class _Interpreter(fx.Interpreter):
    """Runs the traced graph node by node and shows each value."""

    def __init__(self, watch: _Watch) -> None:
        super().__init__(watch.module, graph=watch.plan.graph)
        self.watch = watch

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        self.watch.show(n, value)
        return value

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        constants = self.watch.plan.constants
        return constants[target] if target in constants else super().get_attr(target, args, kwargs)


def _check_finite(value: Tensor, where: str) -> None:
    if not bool(value.isfinite().all()):
        problem = "NaN or infinity; its weights or the data are broken"
        raise ComputekitError(f"calibration: {f'module {where!r}' if where else 'the model'} computes {problem}")


def _close(ours: Any, theirs: Tensor) -> bool:
    if not isinstance(ours, Tensor) or ours.shape != theirs.shape:
        return False
    return bool((ours - theirs).abs().max() <= _SAME * theirs.abs().max())
