"""What is no model file is refused in one line that names the file and what it is."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
import torch
from torch import nn

from computekit import FileProblem, open_model


def test_missing_folder_empty_and_text(tmp_path: Path) -> None:
    (tmp_path / "empty.pt").touch()
    (tmp_path / "text.pt").write_text("hello\nworld\n")
    for name, message in {
        "missing.pt": "no such model file",
        "empty.pt": "is empty",
        "text.pt": "text file that begins with 'hello'",
        ".": "it is a folder",
    }.items():
        with pytest.raises(FileProblem, match=message):
            open_model(tmp_path / name)


def test_a_zip_that_torch_did_not_write(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.pt", "w") as archive:
        archive.writestr("readme.txt", "hello")
    with pytest.raises(FileProblem, match="not one that torch writes"):
        open_model(tmp_path / "a.pt")


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
def test_truncation_anywhere_is_noticed(legacy: bool, tmp_path: Path) -> None:
    torch.save(nn.Linear(20, 20).state_dict(), tmp_path / "a.pt", _use_new_zipfile_serialization=not legacy)
    whole = (tmp_path / "a.pt").read_bytes()
    for percent in range(100):
        (tmp_path / "cut.pt").write_bytes(whole[: len(whole) * percent // 100])
        with pytest.raises(FileProblem):
            open_model(tmp_path / "cut.pt")


def test_a_pickled_module_lists_what_it_wants(tmp_path: Path) -> None:
    torch.save(nn.Linear(2, 2), tmp_path / "a.pt")
    with pytest.raises(FileProblem, match=r"torch\.nn\.modules\.linear\.Linear.*nothing was run"):
        open_model(tmp_path / "a.pt")
