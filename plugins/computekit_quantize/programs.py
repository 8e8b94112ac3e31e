"""Programs beside a model file: exporting a module, and running what came of it as a module again.

The file's metadata says ``compression: {"runtime": {"name": BACKEND, "files": {NAME: SHA-256}, "inputs": [...],
"outputs": [...] or None, ...}}``; the files lie in its folder, or, for a model folder, inside. Importing this imports
torch.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import logging
import shutil
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from computekit import ComputekitError, FileProblem, ModelFile, files, open_model

from .backend import Backend, Export

Call = Callable[[list[Tensor]], list[Tensor]]


class Wrapped(nn.Module):
    """A module that takes its inputs by position and returns a flat tuple; ``names`` are those of the inputs."""

    def __init__(self, module: nn.Module, names: Sequence[str]) -> None:
        super().__init__()
        self.module, self.names = module, list(names)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        output = self.module(**dict(zip(self.names, inputs, strict=True)))
        if isinstance(output, Tensor):
            return (output,)
        values = output.values() if isinstance(output, dict) else output
        return tuple(value for value in values if isinstance(value, Tensor))


def inputs_of(module: nn.Module, sample: Tensor) -> dict[str, Tensor]:
    """What the module is called with, by name: the samples, and for tokens of a model with masks, a mask of ones."""
    names = list(inspect.signature(module.forward).parameters)
    named = {names[0]: sample}
    if not sample.is_floating_point() and "attention_mask" in names:
        named["attention_mask"] = torch.ones_like(sample)
    return named


def exported(job: Export) -> tuple[torch.export.ExportedProgram, dict[str, Any]]:
    """The module as a graph for any batch size, and any length of token sequences; and how it is called.

    Raises:
        ComputekitError: the code cannot be exported, or generates text step by step.
    """
    module = job.module
    if callable(getattr(module, "can_generate", None)) and module.can_generate():  # type: ignore[operator]
        raise ComputekitError("a model that generates text keeps its cache in torch, not in an exported program")
    named = inputs_of(module, job.example)
    wrapped = Wrapped(module, list(named)).eval()
    free = torch.export.Dim.DYNAMIC
    tokens = not job.example.is_floating_point() and job.example.ndim == 2
    shapes = [tuple({0: free, 1: free} if size else {0: free} for _ in named) for size in {tokens, False}]
    failure: Exception | None = None
    for shape in sorted(shapes, key=lambda each: -len(each[0])):
        try:
            with torch.no_grad(), quiet():
                output = module(**named)
                # sizes above 1 and different from each other: what is alike in the example may be taken for the same
                program = torch.export.export(wrapped, tuple(named.values()), dynamic_shapes=(shape,), strict=False)
        except Exception as error:  # the exporter fails in as many ways as there are programs
            failure = failure or error
            continue
        keys = [key for key, value in output.items() if isinstance(value, Tensor)] if isinstance(output, dict) else None
        kind = "tensor" if isinstance(output, Tensor) else "named" if keys else "tuple"
        return program, {"inputs": list(named), "outputs": kind, "keys": keys}
    reason = (str(failure).splitlines() or [type(failure).__name__])[0]
    raise ComputekitError(f"the model's code cannot be exported as a graph: {reason[:200]}") from failure


def operations_of(program: torch.export.ExportedProgram, layers: Sequence[str]) -> set[str]:
    """Names of the graph's operations that come from these layers (paths) of the module that was exported."""
    paths = {f"module.{path}" if path else "module" for path in layers}
    found = set()
    for node in program.graph.nodes:
        inside = {path for path, _ in (node.meta.get("nn_module_stack") or {}).values()}
        if not paths.isdisjoint(inside):
            found.add(node.name)
    return found


class Program(nn.Module):
    """Runs an exported program as the module that it was made from: same arguments, same kind of output.

    ``run`` takes and gives tensors on the CPU, in the order of the graph.
    """

    def __init__(self, run: Call, about: dict[str, Any]) -> None:
        super().__init__()
        self._run, self._names = run, list(about["inputs"])
        self._kind, self._keys = about["outputs"], about["keys"]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        given = {**dict(zip(self._names, args, strict=False)), **kwargs}
        first = given[self._names[0]]
        inputs = []
        for name in self._names:
            value = given.get(name)
            if value is None:  # a mask that was left out masks nothing
                value = torch.ones_like(first)
            if value.device.type != "cpu":
                raise ComputekitError("the exported program runs on the CPU: --device cpu")
            inputs.append(value.detach().float() if value.is_floating_point() else value.long())
        try:
            outputs = self._run(inputs)
        except Exception as error:  # runtimes have exceptions of their own; torch's modules raise this one
            raise RuntimeError((str(error).splitlines() or ["the exported program failed"])[0]) from error
        if self._kind == "tensor":
            return outputs[0]
        if self._kind == "tuple":
            return tuple(outputs)
        from transformers import utils

        made: Any = vars(utils)["ModelOutput"]
        return made(**dict(zip(self._keys, outputs, strict=True)))


def describe(backend: Backend, about: dict[str, Any], written: Sequence[Path]) -> dict[str, Any]:
    """The metadata ``runtime`` of a model file: the backend, what its export told, and its files with their hashes."""
    listed = {"files": {path.name: files.sha256(path) for path in sorted(written)}} if written else {}
    return {"name": backend.name, **listed, **about}


def place(written: Sequence[Path], target: Path) -> None:
    """Copy the files of a program beside the model file ``target``, or into it if it is a folder."""
    for path in written:
        shutil.copyfile(path, (target if target.is_dir() else target.parent) / path.name)


def find(source: ModelFile) -> tuple[dict[str, Any], list[Path]]:
    """The runtime's metadata and the paths of its files, which are what the metadata says.

    Raises:
        FileProblem: a file is missing or is not the one that was written with the model.
    """
    listed = _listed(source)
    if listed is None:
        raise FileProblem(source.path, "names no files of the program that runs it", "the file is damaged")
    paths = []
    for name, sha256 in sorted(listed.items()):
        path = _located(source, name, sha256)
        if path is None:
            beside = (source.path if source.path.is_dir() else source.path.parent) / name
            problem = f"is run from {name}, which is {'another file now' if beside.is_file() else 'not beside it'}"
            hint = f"put there the {name} that was written with it, or quantize again; computekit dequantize needs none"
            raise FileProblem(source.path, problem, hint)
        paths.append(path)
    runtime: dict[str, Any] = source.metadata["compression"]["runtime"]
    return runtime, paths


def belonging(target: Path) -> set[str]:
    """Names of the files beside ``target`` that are, unchanged, the program of the model file that is there now."""
    try:
        source = open_model(target)
        listed = _listed(source) or {}
    except ComputekitError:
        return set()
    return {name for name, sha256 in listed.items() if _located(source, name, sha256) is not None}


def _listed(source: ModelFile) -> dict[str, str] | None:
    """The files of a model file's program by name, with their hashes; None if it names none, or not only names."""
    try:
        listed = source.metadata["compression"]["runtime"]["files"]
    except (LookupError, TypeError):
        return None
    names_only = isinstance(listed, dict) and all(Path(str(name)).name == name for name in listed)
    return listed if names_only else None


def _located(source: ModelFile, name: str, sha256: str) -> Path | None:
    """The file of a program that has this hash: beside the model file, or where a killed process left it."""
    beside = (source.path if source.path.is_dir() else source.path.parent) / name
    places = (beside, *files.companions_before(source.path, name))
    return next((path for path in places if path.is_file() and files.sha256(path) == sha256), None)


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
