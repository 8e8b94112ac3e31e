"""Arrays of three dimensions: images, unless their name or the model says that they are signals or sequences."""

from __future__ import annotations

from pathlib import Path

import numpy
import pytest
import torch
from torch import nn

from computekit import FileProblem, load_data, save_module
from computekit.models import ArchRef


def arrays(path: Path, **arrays: numpy.ndarray) -> str:
    numpy.savez(path, y=numpy.arange(30) % 3, **arrays)
    return str(path)


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (nn.Conv1d(5, 4, 3), (5, 8)),
        (nn.LSTM(8, 4), (5, 8)),
        (nn.Sequential(nn.BatchNorm1d(8), nn.Linear(8, 4)), (5, 8)),
        (nn.Conv2d(1, 4, 3), (1, 5, 8)),
        (nn.Conv1d(1, 4, 3), (1, 5, 8)),
        (nn.Sequential(nn.Flatten(), nn.Linear(40, 4)), (1, 5, 8)),
    ],
)
def test_the_first_weight_of_the_model_decides(module: nn.Module, shape: tuple[int, ...], tmp_path: Path) -> None:
    save_module(module, tmp_path / "m.pt", ArchRef("mine:build"))
    name = arrays(tmp_path / "a.npz", x=numpy.ones((30, 5, 8)))
    data = load_data(name, model=tmp_path / "m.pt")
    assert {split.inputs.shape[1:] for split in (data.train, data.validation, data.test)} == {shape}
    assert load_data(name).sample_shape == (1, 5, 8)
    assert load_data("digits", model=tmp_path / "m.pt").sample_shape == (1, 8, 8)


def test_signals_are_signals_for_every_model(tmp_path: Path) -> None:
    name = arrays(tmp_path / "a.npz", signals=numpy.ones((30, 5, 8)))
    assert load_data(name).sample_shape == (5, 8)
    torch.save({"a.weight": torch.ones(4, 1, 3, 3)}, tmp_path / "m.pt")
    assert load_data(name, model=tmp_path / "m.pt").sample_shape == (5, 8)
    with pytest.raises(FileProblem, match=r"\(N, channels, time\)"):
        load_data(arrays(tmp_path / "b.npz", signals=numpy.ones((30, 5))))


def test_a_model_that_cannot_be_opened_is_no_matter_of_the_data(tmp_path: Path) -> None:
    (tmp_path / "m.pt").write_bytes(b"no model")
    name = arrays(tmp_path / "a.npz", x=numpy.ones((30, 5, 8)))
    assert load_data(name, model=tmp_path / "m.pt").sample_shape == (1, 5, 8)
