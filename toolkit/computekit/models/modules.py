"""Runnable modules: building an architecture and putting a file's weights into it."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import files, host
from ..errors import ComputekitError, FileProblem

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class ArchRef:
    """An architecture by name (``resnet`` or ``package.module:callable``) and its arguments."""

    name: str
    args: Mapping[str, Any] = field(default_factory=dict)


def build(arch: ArchRef) -> nn.Module:
    """A fresh module of ``arch``; raises UnknownName, or ComputekitError if the factory fails."""
    from torch import nn

    if ":" in arch.name:
        module_name, _, attribute = arch.name.partition(":")
        try:
            factory = getattr(importlib.import_module(module_name), attribute)
        except (ImportError, AttributeError) as error:
            raise ComputekitError(f"cannot import architecture {arch.name!r}: {error}") from error
    else:
        factory = host.current().architecture(arch.name).build
    try:
        module = factory(**arch.args)
    except TypeError as error:
        raise ComputekitError(f"architecture {arch.name!r} does not take these arguments: {error}") from error
    if not isinstance(module, nn.Module):
        raise ComputekitError(f"architecture {arch.name!r} returned a {type(module).__name__}, not a torch nn.Module")
    return module


def save_module(module: nn.Module, path: str | Path, arch: ArchRef, **metadata: Any) -> None:
    """Write ``module``'s state_dict with its architecture to ``path`` (torch zip, opens with weights_only=True).

    ``path`` is normally the temporary file of `StepRun.writing`. ``metadata`` is plain data kept with the model.
    """
    import torch

    document = {
        "state_dict": {name: tensor.detach().cpu() for name, tensor in module.state_dict().items()},
        "computekit": {"format": 1, "arch": {"name": arch.name, "args": dict(arch.args)}, **metadata},
    }
    with Path(path).open("wb") as stream:  # a stream, so that the archive does not contain the file's name
        torch.save(document, stream)


def load_module(
    path: str | Path,
    arch: ArchRef | None = None,
    *,
    trust_pickle: bool = False,
) -> tuple[nn.Module, ArchRef, dict[str, Any]]:
    """A module in eval mode on the CPU with the weights of ``path``, its architecture, and the file's metadata.

    ``arch`` overrides or supplies the architecture for a file that does not remember one.
    """
    import torch

    try:
        document = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise FileProblem(path, f"is not a model file ({type(error).__name__})") from error
    metadata = document.get("computekit", {})
    if arch is None:
        if "arch" not in metadata:
            raise FileProblem(path, "holds weights without code", "say which architecture with --arch")
        arch = ArchRef(metadata["arch"]["name"], metadata["arch"]["args"])
    module = build(arch)
    state_dict = document.get("state_dict", document)
    if metadata.get("pruned"):
        from .shapes import shrink

        shrink(module, {name: tuple(tensor.shape) for name, tensor in state_dict.items()})
    module.load_state_dict(state_dict)
    return module.eval(), arch, metadata


_ = files
