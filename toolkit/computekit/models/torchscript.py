"""TorchScript archives: their parameters and buffers. The code in them is run by `ScriptFile.program` alone."""

from __future__ import annotations

import io
import warnings
from pathlib import Path

import torch
from torch import nn

from ..errors import FileProblem
from . import checkpoint, layout, pickled_modules, pickles, torch_files
from .pickles import Call, Malformed
from .torch_files import Archive, TorchFile


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
        _check_complete(path, root, opened)
        return ScriptFile(path, "torchscript", root=pickled_modules.state_dict(root), extents=opened.extents("data/"))


def _check_complete(path: Path, root: Call, opened: Archive) -> None:
    """Raise FileProblem if weights are where no state_dict has them."""
    if any(layout.unusual(value) == "quantized tensor" for value in pickles.walk(root, checkpoint.contents)):
        problem = "holds layers that torch quantized, packed in objects of its own"
        raise FileProblem(path, problem, "script the model from before it was quantized")
    named = pickled_modules.state_dict(root)
    if not named and any(name.startswith("constants/") for name in opened.members):
        problem = "keeps its weights without names, as constants of its code (torch.jit.freeze)"
        raise FileProblem(path, problem, "save the scripted model without freezing it")
