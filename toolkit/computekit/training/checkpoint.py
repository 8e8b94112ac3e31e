"""Checkpoints from which training goes on exactly where it was. Importing this imports torch."""

from __future__ import annotations

import glob
import random
from pathlib import Path
from typing import Any

import torch

from .. import files
from ..errors import FileProblem
from ..models.modules import save_archive

_FORMAT = 1


def save(path: Path, fingerprint: dict[str, Any], state: dict[str, Any]) -> None:
    """Write ``state`` (plain data and tensors) and the states of all random generators to ``path``, atomically.

    ``fingerprint`` says of which training this is a checkpoint: architecture, data, recipe, seed.
    """
    document = {"computekit_checkpoint": _FORMAT, "fingerprint": fingerprint, "random": _random(), **state}
    with files.atomic(path) as temporary:
        save_archive(document, temporary)


def load(path: Path, fingerprint: dict[str, Any]) -> dict[str, Any] | None:
    """The state in ``path``, with the random generators set as they were; None if there is no such file.

    Raises:
        FileProblem: the file is no checkpoint, or one of another training.
    """
    if not path.exists():
        return None
    try:
        document = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch's readers fail in many ways on damaged files
        raise FileProblem(path, "is not a checkpoint", "delete it to start from the beginning") from error
    if not isinstance(document, dict) or document.get("computekit_checkpoint") != _FORMAT:
        raise FileProblem(path, "is not a checkpoint of this version", "delete it to start from the beginning")
    theirs = document["fingerprint"]
    changed = sorted(key for key in {*theirs, *fingerprint} if theirs.get(key) != fingerprint.get(key))
    if changed:
        key = changed[0]
        raise FileProblem(
            path,
            f"is of another training: {key} was {theirs.get(key)!r} and is now {fingerprint.get(key)!r}",
            "give the same options, or delete it to start from the beginning",
        )
    _set_random(document["random"])
    return document


def discard_leftovers(path: Path) -> None:
    """Remove the temporary files of checkpoints that were being written when a run was killed."""
    for leftover in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):
        leftover.unlink(missing_ok=True)


def _random() -> dict[str, Any]:
    import numpy

    kind, keys, *rest = numpy.random.get_state(legacy=True)
    return {
        "python": _plain(random.getstate()),
        "numpy": [kind, torch.from_numpy(numpy.asarray(keys, dtype="int64")), *rest],
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def _set_random(state: dict[str, Any]) -> None:
    import numpy

    version, keys, gauss = state["python"]
    random.setstate((version, tuple(keys), gauss))
    kind, words, position, has_gauss, cached = state["numpy"]
    numpy.random.set_state((kind, words.numpy().astype("uint32"), position, has_gauss, cached))
    torch.set_rng_state(state["torch"])
    if state["cuda"]:
        torch.cuda.set_rng_state_all(state["cuda"])


def _plain(value: Any) -> Any:
    return [_plain(item) for item in value] if isinstance(value, tuple) else value
