"""Model files: opening, saving, and getting a runnable module out of them.

`open_model` and `rewrite` are for steps that look at or change weights: they need no code, and work on any kind of
file. `load_module` and `save_module` are for steps that run a model. Files that hold weights without code need an
architecture (``--arch``); files that computekit wrote remember theirs.
"""

from __future__ import annotations

from .base import ModelFile, TensorInfo, Writer
from .formats import open_model, rewrite
from .modules import ArchRef, build, load_into, load_module, save_module

__all__ = [
    "ArchRef",
    "ModelFile",
    "TensorInfo",
    "Writer",
    "build",
    "load_into",
    "load_module",
    "open_model",
    "rewrite",
    "save_module",
]
