"""TorchScript archives: their parameters and buffers. The code in them is neither read nor run here."""

from __future__ import annotations

import io
from pathlib import Path

from . import checkpoint, pickled_modules, torch_files
from .pickles import Call, Malformed
from .torch_files import TorchFile


def sniff(path: Path) -> bool:
    """Whether ``path`` is an archive of torch.jit.save, which unlike torch.save's has constants and code."""
    names = torch_files.member_names(path)
    return torch_files.has_member(names, "data.pkl") and torch_files.has_member(names, "constants.pkl")


def read(path: Path, _trust_pickle: bool) -> TorchFile:
    """The tensors of a TorchScript module, named as its state_dict names them.

    Raises:
        FileProblem: the archive is damaged.
    """
    with torch_files.archive(path) as opened:
        root = checkpoint.parse(io.BytesIO(opened.content("data.pkl")))
        if not isinstance(root, Call):
            raise Malformed("its object is no module")
        return TorchFile(path, "torchscript", root=pickled_modules.state_dict(root), extents=opened.extents("data/"))
