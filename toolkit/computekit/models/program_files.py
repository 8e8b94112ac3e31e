"""Files of programs: what lies beside a model file, or in its folder, and runs it in place of the module's own code.

The metadata of the model file lists them with their hashes: ``compression: {"runtime": {"files": {NAME: SHA-256}}}``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .. import files
from ..errors import ComputekitError
from .base import ModelFile


def listed(source: ModelFile) -> dict[str, str] | None:
    """The files of a model file's program by name, with their hashes; None if it names none, or not only names."""
    try:
        found = source.metadata["compression"]["runtime"]["files"]
    except (LookupError, TypeError):
        return None
    names_only = isinstance(found, dict) and all(Path(str(name)).name == name for name in found)
    return found if names_only else None


def without(source: ModelFile) -> dict[str, Any]:
    """The metadata of a model file without its program, which a copy of the weights elsewhere does not have."""
    if listed(source) is None:
        return source.metadata
    compression = {key: value for key, value in source.metadata["compression"].items() if key != "runtime"}
    return source.metadata | {"compression": compression}


def beside(source: ModelFile, name: str) -> Path:
    """Where a file of the program of ``source`` belongs."""
    return (source.path if source.path.is_dir() else source.path.parent) / name


def located(source: ModelFile, name: str, sha256: str) -> Path | None:
    """The file of a program that has this hash: beside the model file, or where a killed process left it."""
    places = (beside(source, name), *files.companions_before(source.path, name))
    return next((path for path in places if path.is_file() and files.sha256(path) == sha256), None)


def belonging(target: Path) -> set[str]:
    """Names of the files beside ``target`` that are, unchanged, the program of the model file that is there now.

    They bear its name: a copy of a model file is run by the program of the first one, but does not own it.
    """
    from .formats import open_model

    if not target.is_file():  # a folder is replaced with all that is in it
        return set()
    try:
        source = open_model(target)
        found = listed(source) or {}
    except ComputekitError:
        return set()
    own = {name: sha256 for name, sha256 in found.items() if name.startswith(f"{target.stem}.")}
    return {name for name, sha256 in own.items() if located(source, name, sha256) is not None}
