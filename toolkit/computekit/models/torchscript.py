"""TorchScript archives: their parameters and buffers. The code in them is run by `ScriptFile.program` alone."""

from __future__ import annotations

import io
import warnings
from pathlib import Path

import torch
from torch import nn

from ..errors import FileProblem
from . import checkpoint, pickled_modules, torch_files
from .pickles import Call, Malformed
from .torch_files import TorchFile


class ScriptFile(TorchFile):
    """A TorchScript archive; its program is the module that was scripted or traced."""

    def program(self, trust_pickle: bool) -> nn.Module:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                module: nn.Module = torch.jit.load(self.path, map_location="cpu")  # type: ignore[no-untyped-call]
        except RuntimeError as error:
            raise FileProblem(self.path, "is TorchScript that this torch cannot load", str(error)[:200]) from error
        return module.eval()


def sniff(path: Path) -> bool:
    """Whether ``path`` is an archive of torch.jit.save, which unlike torch.save's has constants and code."""
    names = torch_files.member_names(path)
    return torch_files.has_member(names, "data.pkl") and torch_files.has_member(names, "constants.pkl")


def read(path: Path, _trust_pickle: bool) -> ScriptFile:
    """The tensors of a TorchScript module, named as its state_dict names them.

    Raises:
        FileProblem: the archive is damaged.
    """
    with torch_files.archive(path) as opened:
        root = checkpoint.parse(io.BytesIO(opened.content("data.pkl")))
        if not isinstance(root, Call):
            raise Malformed("its object is no module")
        return ScriptFile(path, "torchscript", root=pickled_modules.state_dict(root), extents=opened.extents("data/"))
