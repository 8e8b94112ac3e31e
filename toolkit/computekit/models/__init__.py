"""Model files: opening, saving, and getting a runnable module out of them.

`load_module` and `save_module` are for steps that run a model. Files that hold weights without code need an
architecture (``--arch``); files that computekit wrote remember theirs.
"""

from __future__ import annotations

from .modules import ArchRef, build, load_module, save_module

__all__ = ["ArchRef", "build", "load_module", "save_module"]
