"""Exporting a module as a graph that other runtimes take. Importing this imports torch."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from computekit import ComputekitError, inputs

from . import signature
from .backend import Export
from .signature import Call

M = TypeVar("M")

Shapes = list[list[int | None]]

_MORE = 3
"""How many samples, or steps of sequences, more than the example a program is checked with, or fewer."""
_NEAR, _TINY = 0.02, 1e-6
"""How far a program may be from the code, as a share of the output's norm, and at least: runtimes round otherwise."""
_LONG = 3
"""Most axes of an input that may have a length of its own, such as tokens or samples of sound: images have more."""


class Unexportable(ComputekitError):
    """The code of a model cannot become a program."""

    def __init__(self, reason: object) -> None:
        line = (str(reason).splitlines() or [type(reason).__name__])[0][:200]
        super().__init__(f"the model's code cannot be exported as a graph: {line}; --backend torch runs any code")


@dataclass(frozen=True)
class Exported(Generic[M]):
    """A module as a graph and as the ``model`` of a runtime; ``about`` says how it is called: `signature.Program`."""

    program: torch.export.ExportedProgram
    model: M
    about: dict[str, Any]


def exported(job: Export, convert: Callable[[torch.export.ExportedProgram, list[str]], tuple[M, Call]]) -> Exported[M]:
    """The module for any batch size, and any length of sequences where code and runtime allow that.

    ``convert`` gives the runtime's model of a graph with inputs of these names, and how to run it, in floats: it is
    held against the module on more samples and longer sequences than it was exported with, since exporters and
    converters may take sizes for constants without a word.

    Raises:
        Unexportable: the code or the runtime is not up to it, or the model generates text step by step.
    """
    module = job.module
    if callable(getattr(module, "can_generate", None)) and module.can_generate():  # type: ignore[operator]
        raise ComputekitError("a model that generates text keeps its cache in torch, not in an exported program")
    named = signature.inputs_of(module, *job.example)
    tensors = tuple(value for value in named.values() if isinstance(value, Tensor))
    flat = signature.Flat(module, named, len(job.example)).eval()
    failure: Exception | None = None
    for long in (True, False):
        try:
            with torch.no_grad(), quiet():
                about = signature.describe(module, named, len(job.example), flat.call(*tensors))
                program = torch.export.export(flat, tensors, dynamic_shapes=(_free(tensors, long),), strict=False)
                model, run = convert(program, [name for name, _ in about["inputs"]])
                shapes = _checked(flat, run, tensors, _symbols(program))
        except Exception as error:  # exporters fail in as many ways as there are programs
            failure = failure or error
            continue
        return Exported(program, model, {**about, "shapes": shapes, "vocabulary": inputs.vocabulary(module)})
    raise Unexportable(failure) from failure


def _free(tensors: Sequence[Tensor], long: bool) -> tuple[dict[int, Any], ...]:
    """For each input, the axes whose sizes may differ from the example's: the batch, and if it is ``long`` lengths."""
    free, maybe = torch.export.Dim.DYNAMIC, torch.export.Dim.AUTO
    batch = len(tensors[0])
    found = []
    for tensor in tensors:
        axes = {0: free} if tensor.ndim and len(tensor) == batch else {}
        if long and tensor.ndim <= _LONG:
            axes |= dict.fromkeys(range(1, tensor.ndim), maybe)
        found.append(axes)
    return tuple(found)


def _symbols(program: torch.export.ExportedProgram) -> list[list[str | int]]:
    """For each input of a graph its sizes; the names of those that the graph leaves open. All batches are one."""
    values = {node.name: node.meta["val"] for node in program.graph.nodes if node.op == "placeholder"}
    names = program.graph_signature.user_inputs
    found = [[str(size) if isinstance(size, torch.SymInt) else size for size in values[name].shape] for name in names]
    batches = {shape[0] for shape in found if shape} - {size for shape in found for size in shape[1:]}
    return [["batch" if not axis and size in batches else size for axis, size in enumerate(shape)] for shape in found]


def _checked(flat: signature.Flat, run: Call, tensors: Sequence[Tensor], sizes: list[list[str | int]]) -> Shapes:
    """The shapes that a program takes: ``sizes``, with None where it gives what the code does for others too.

    Sizes that only the graph leaves open, since the code takes no other, are those of the example.

    Raises:
        ComputekitError: the program gives something else than the code.
    """
    names = dict.fromkeys(size for shape in sizes for size in shape if isinstance(size, str))
    open_ = {name for name in names if _alike(flat, run, _varied(tensors, sizes, name))}
    return [
        [None if size in open_ else tensor.shape[axis] for axis, size in enumerate(shape)]
        for tensor, shape in zip(tensors, sizes, strict=True)
    ]


def _varied(tensors: Sequence[Tensor], sizes: list[list[str | int]], name: str) -> Iterator[list[Tensor]]:
    """The example with more, and with fewer, of what ``name`` counts."""
    for more in (_MORE, -_MORE):
        made = []
        for tensor, shape in zip(tensors, sizes, strict=True):
            changed = tensor
            for axis in (axis for axis, size in enumerate(shape) if size == name):
                count = max(1, tensor.shape[axis] + more)
                changed = changed.index_select(axis, torch.arange(count) % tensor.shape[axis])
            made.append(changed)
        yield made


def _alike(flat: signature.Flat, run: Call, others: Iterable[list[Tensor]]) -> bool:
    """Whether ``run`` gives what the module does for the first of ``others`` that it takes; False if it takes none.

    Raises:
        ComputekitError: ``run`` gives something else.
    """
    for tensors in others:
        try:
            expected = flat(*tensors)
        except Exception:  # longer than its positions, or shorter than its kernels, or no size of its own
            continue
        for ours, theirs in zip(run(tensors), expected, strict=True):
            same = ours.shape == theirs.shape
            if not same or (ours.double() - theirs).norm() > _NEAR * theirs.double().norm() + _TINY:
                raise ComputekitError("the program does not give what the code gives for inputs of other sizes")
        return True
    return False


def operations_of(program: torch.export.ExportedProgram, layers: Sequence[str]) -> set[str]:
    """Names of the graph's operations that come from these layers (paths) of the module that was exported."""
    paths = {f"module.{path}" if path else "module" for path in layers}
    found = set()
    for node in program.graph.nodes:
        inside = {path for path, _ in (node.meta.get("nn_module_stack") or {}).values()}
        if not paths.isdisjoint(inside):
            found.add(node.name)
    return found


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep exporters from printing, logging and warning: what matters of it comes as an exception."""
    sink = io.StringIO()
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(sink), contextlib.redirect_stderr(sink):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
