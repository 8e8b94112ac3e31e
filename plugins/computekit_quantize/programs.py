"""The files of programs: placed beside a model file, described in it, and found again.

The file's metadata says ``compression: {"runtime": {"name": BACKEND, "files": {NAME: SHA-256}, ...}}`` with what the
backend's export told; the files lie in its folder, or, for a model folder, inside.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from computekit import FileProblem, ModelFile, files
from computekit.models import program_files

from .backend import Backend


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
    listed = program_files.listed(source)
    if listed is None:
        raise FileProblem(source.path, "names no files of the program that runs it", "the file is damaged")
    paths = []
    for name, sha256 in sorted(listed.items()):
        path = program_files.located(source, name, sha256)
        if path is None:
            other = program_files.beside(source, name).is_file()
            problem = f"is run from {name}, which is {'another file now' if other else 'not beside it'}"
            hint = f"put there the {name} that was written with it, or quantize again; computekit dequantize needs none"
            raise FileProblem(source.path, problem, hint)
        paths.append(path)
    runtime: dict[str, Any] = source.metadata["compression"]["runtime"]
    return runtime, paths
