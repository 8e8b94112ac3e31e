"""Objects that a user names on the command line as ``package.module:callable``."""

from __future__ import annotations

import importlib
import sys
import types
from pathlib import Path
from typing import Any

from .errors import ComputekitError, UnknownName


def import_object(reference: str, what: str) -> Any:
    """The object that ``package.module:attribute`` names; the current folder is searched first, as python does.

    ``what`` says what it is for ("architecture", "data set"). Raises ComputekitError if the module cannot be
    imported, and UnknownName, with the nearest names, if it has no such attribute.
    """
    module_name, _, attributes = reference.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(module_name)
    except Exception as error:  # importing runs the user's own code, which may fail in any way
        raise ComputekitError(
            f"cannot import {what} {reference!r}: {type(error).__name__}: {error}; "
            f"{module_name} must be a module in the current folder or an installed one"
        ) from error
    for name in attributes.split("."):
        if not hasattr(found, name):
            names = (n for n in dir(found) if not n.startswith("_"))
            known = [n for n in names if not isinstance(getattr(found, n, None), types.ModuleType)]
            raise UnknownName(f"{what} in {module_name}", name, known)
        found = getattr(found, name)
    return found
