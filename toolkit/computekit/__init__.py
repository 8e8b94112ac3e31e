"""computekit: train, compress, benchmark and price models; plugins add the verbs, records keep the results.

This module is the public face for plugin authors. A plugin is a module named in the entry-point group ``computekit``::

    # computekit_ternary.py
    from __future__ import annotations                 # so that StepRun, below, is not imported at every start

    from pathlib import Path

    import click
    import computekit
    from computekit import hookspecs, implements, options


    @click.command()
    @options.model
    @options.step
    def ternary(run: computekit.StepRun, model: Path) -> None:
        '''Round every weight to -1, 0 or 1 times a scale.'''
        import torch                                   # heavy imports live inside the function

        source = computekit.open_model(run.input(model))
        with run.writing(model.with_stem(model.stem + "-ternary")) as target:
            ...
        run.put("file_bytes", 123, "B", how="measured")


    @implements(hookspecs.computekit_steps)
    def steps() -> list[computekit.Step]:
        return [computekit.Step("ternary", ternary, takes="model", gives="model")]

    # pyproject.toml
    [project.entry-points.computekit]
    ternary = "computekit_ternary"

``computekit plugins new ternary`` writes all of that and its tests; docs/plugins is the guide. After ``pip install`` it
is ``computekit ternary model.pt``, and ``ternary`` is a step that any pipeline can name.
Importing this module imports neither torch nor anything else that is slow: the names below that need torch load it
when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from . import errors, hookspecs, options
from .errors import ComputekitError, FileProblem, MissingExtra, UnknownName
from .hookspecs import hookimpl, hookspec, implements
from .verbs import API_VERSION, Command, LazyCommand, Step

if TYPE_CHECKING:
    from .contracts import Architecture, Column, Dataset, Hardware, ModelFormat, Price, Runtime
    from .datasets import Data, Split, load_data
    from .models import ArchRef, ModelFile, TensorInfo, Writer, load_into, load_module, open_model, rewrite, save_module
    from .records import Quantity, Record, Row
    from .steps import StepRun

__version__ = "0.1.0"

_LAZY = {
    "Architecture": "contracts",
    "Column": "contracts",
    "Dataset": "contracts",
    "Hardware": "contracts",
    "ModelFormat": "contracts",
    "Price": "contracts",
    "Runtime": "contracts",
    "StepRun": "steps",
    "Quantity": "records",
    "Record": "records",
    "Row": "records",
    "ArchRef": "models",
    "ModelFile": "models",
    "TensorInfo": "models",
    "Writer": "models",
    "open_model": "models",
    "rewrite": "models",
    "load_into": "models",
    "load_module": "models",
    "save_module": "models",
    "Data": "datasets",
    "Split": "datasets",
    "load_data": "datasets",
}

__all__ = [
    "API_VERSION",
    "ArchRef",
    "Architecture",
    "Column",
    "Command",
    "ComputekitError",
    "Data",
    "Dataset",
    "FileProblem",
    "Hardware",
    "LazyCommand",
    "MissingExtra",
    "ModelFile",
    "ModelFormat",
    "Price",
    "Quantity",
    "Record",
    "Row",
    "Runtime",
    "Split",
    "Step",
    "StepRun",
    "TensorInfo",
    "UnknownName",
    "Writer",
    "__version__",
    "errors",
    "hookimpl",
    "hookspec",
    "hookspecs",
    "implements",
    "load_data",
    "load_into",
    "load_module",
    "open_model",
    "options",
    "rewrite",
    "save_module",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(f".{_LAZY[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
