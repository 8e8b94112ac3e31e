"""A model as stages that run one after another, so that later layers are calibrated on what earlier ones have become.

Most deep models are a chain of blocks. Where one is found, the inputs of a block are kept and the block alone is run
again once its layers have changed: the whole walk costs about three passes of the data, not one for each layer, and
memory for the activations between two blocks. What lies outside the chain, and models without one, take whole passes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from computekit.evaluation import forward

from . import calibration
from .calibration import O

if TYPE_CHECKING:
    from torch import Tensor

_PASSES = 8  # most passes over the data for layers that no chain holds

_Call = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass
class Stage:
    """Some layers of a model, in the order in which they run, and the calls of the part that they are in.

    ``names`` are the layers' names in ``part``, ``prefix`` is what stands before them in the whole model.
    """

    part: nn.Module
    prefix: str
    names: list[str]
    calls: list[_Call]

    def observe(self, make_observer: Callable[[str, nn.Module], O]) -> dict[str, O]:
        """Observers of the layers' inputs, by their names in the whole model: see `calibration.observe`."""
        with calibration.watching(self.part, self.names, make_observer) as observers:
            self.outputs(len(self.calls))
        return {self.prefix + name: observer for name, observer in observers.items()}

    @torch.no_grad()
    def outputs(self, count: int) -> list[Any]:
        """What the part returns for its first ``count`` calls."""
        return [self.part(*args, **kwargs) for args, kwargs in self.calls[:count]]


def walk(module: nn.Module, batches: Sequence[Tensor], names: Sequence[str]) -> Iterator[Stage]:
    """The stages of ``module``, in eval mode, that hold the layers ``names``; layers that never run are in none.

    The caller may change a stage's parameters in place before it asks for the next one, which sees their effect.

    Raises:
        ComputekitError: the model cannot take the data.
    """
    with _without_cache(module):
        order = list(calibration.observe(module, batches[:1], names, lambda name, layer: lambda input: None))
        chain = _find_chain(module, batches[0], order)
        blocks = [f"{name}." for name in chain]
        inside = {name for name in order if name.startswith(tuple(blocks))} if blocks else set()
        first = next((i for i, name in enumerate(order) if name in inside), len(order))
        whole: list[_Call] = [((batch,), {}) for batch in batches]
        before = [name for name in order[:first] if name not in inside]
        after = [name for name in order[first:] if name not in inside]
        for group in _groups(before):
            yield Stage(module, "", group, whole)
        if inside:
            yield from _walk_chain(module, batches, chain, order)
        for group in _groups(after):
            yield Stage(module, "", group, whole)


def _groups(names: list[str]) -> list[list[str]]:
    """``names`` in at most `_PASSES` runs of about equal length."""
    size = max(1, -(-len(names) // _PASSES))
    return [names[start : start + size] for start in range(0, len(names), size)]


@dataclass
class _Recorder:
    """The calls of some modules: for each in the order of calls, its name, its arguments and what it returned."""

    seen: list[tuple[str, _Call, Any]] = field(default_factory=list)

    def watch(self, name: str, block: nn.Module) -> Any:
        def after(block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            self.seen.append((name, (args, kwargs), output))

        return block.register_forward_hook(after, with_kwargs=True)


def _record(module: nn.Module, batch: Tensor, names: Sequence[str]) -> list[tuple[str, _Call, Any]]:
    recorder = _Recorder()
    handles = [recorder.watch(name, module.get_submodule(name)) for name in names]
    try:
        with torch.no_grad():
            forward(module, batch, "the model to calibrate")
    finally:
        for handle in handles:
            handle.remove()
    return recorder.seen


def _find_chain(module: nn.Module, batch: Tensor, names: Sequence[str]) -> list[str]:
    """The names of the blocks of the list that holds most of the layers ``names``; none if they are no chain.

    They are one if each runs once and begins with what the one before it gave.
    """
    best: list[str] = []
    most = len(names) / 2
    for path, container in module.named_modules():
        if not isinstance(container, (nn.ModuleList, nn.Sequential)) or len(container) < 2:
            continue
        held = sum(name.startswith(f"{path}.") for name in names)
        if held > most:
            best, most = [f"{path}.{child}" for child, _ in container.named_children()], held
    if not best:
        return []
    calls = _record(module, batch, best)
    linked = all(_input(this[1]) is _output(last[2]) for last, this in itertools.pairwise(calls))
    return best if [name for name, _, _ in calls] == best and linked else []


def _walk_chain(
    module: nn.Module, batches: Sequence[Tensor], chain: list[str], names: Sequence[str]
) -> Iterator[Stage]:
    """One stage per block; what the blocks get besides the output of the one before is as in the float model."""
    calls: dict[str, list[_Call]] = {name: [] for name in chain}
    inputs = []
    for batch in batches:
        recorded = _record(module, batch, chain)
        inputs.append(_input(recorded[0][1]))
        for name, call, _ in recorded:
            calls[name].append(_with_input(call, None))
    for name in chain:
        block = module.get_submodule(name)
        inner = [layer.removeprefix(f"{name}.") for layer in names if layer.startswith(f"{name}.")]
        stage = Stage(block, f"{name}.", inner, [_with_input(c, x) for c, x in zip(calls[name], inputs, strict=True)])
        if inner:
            yield stage
        inputs = [_output(output) for output in stage.outputs(len(batches))]


def _input(call: _Call) -> Any:
    args, kwargs = call
    return args[0] if args else next(iter(kwargs.values()))


def _with_input(call: _Call, input: Any) -> _Call:
    """The same call with another first argument."""
    args, kwargs = call
    if args:
        return (input, *args[1:]), kwargs
    return (), {**kwargs, next(iter(kwargs)): input}


def _output(output: Any) -> Any:
    return output[0] if isinstance(output, tuple) else output


@contextmanager
def _without_cache(module: nn.Module) -> Iterator[None]:
    """Keep a transformers decoder from handing its blocks a key-value cache, which would grow with every call."""
    config = getattr(module, "config", None)
    before = getattr(config, "use_cache", None)
    if before is None:
        yield
        return
    config.use_cache = False  # type: ignore[union-attr]
    try:
        yield
    finally:
        config.use_cache = before  # type: ignore[union-attr]
