"""Data sets: splits that never change, files of the user's own, and arrays that cannot be used."""

from __future__ import annotations

import importlib
import types
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import computekit
from computekit import MissingExtra, UnknownName, datasets, host
from computekit.datasets import Data, DataProblem, from_arrays, from_text, load_data
from computekit.errors import ComputekitError, FileProblem


def _parts(data: Data) -> tuple[datasets.Split, ...]:
    return data.train, data.validation, data.test


def _arrays(count: int = 40, classes: int = 4) -> tuple[numpy.ndarray, numpy.ndarray]:
    return numpy.arange(count * 3, dtype=numpy.float32).reshape(count, 3), numpy.arange(count) % classes


@pytest.mark.parametrize(("name", "count", "shape"), [("digits", 1797, (1, 8, 8)), ("mnist5k", 5000, (1, 28, 28))])
def test_builtin_images_are_split_70_10_20_in_each_class(name: str, count: int, shape: tuple[int, ...]) -> None:
    data = load_data(name)
    sizes = [len(part) for part in _parts(data)]
    assert sum(sizes) == count
    assert sizes[0] / count == pytest.approx(0.7, abs=0.01)
    assert sizes[2] / count == pytest.approx(0.2, abs=0.01)
    assert data.sample_shape == shape
    assert data.train.inputs.min() >= 0 and data.train.inputs.max() <= 1
    shares = [torch.bincount(part.targets, minlength=10) / len(part) for part in _parts(data)]
    assert torch.allclose(shares[0], shares[2], atol=0.02)


def test_splits_do_not_depend_on_the_global_seed() -> None:
    first = from_arrays("a", *_arrays(), source="").sha256()
    numpy.random.seed(5)
    torch.manual_seed(5)
    assert from_arrays("a", *_arrays(), source="").sha256() == first


def test_digits_are_the_same_bytes_as_ever() -> None:
    assert load_data("digits").sha256() == "ab746e129aa38433baf7db3b25a64ebc0b9a143b1fd98bbeedd53a838e0a3f41"


@given(counts=st.lists(st.integers(3, 30), min_size=2, max_size=6))
@settings(max_examples=30, deadline=None)
def test_every_sample_is_in_exactly_one_split_and_every_class_in_each(counts: list[int]) -> None:
    targets = numpy.repeat(numpy.arange(len(counts)), counts)
    inputs = numpy.arange(len(targets), dtype=numpy.float32)[:, None]
    data = from_arrays("a", inputs, targets, source="")
    seen = torch.cat([part.inputs[:, 0] for part in _parts(data)])
    assert sorted(seen.tolist()) == inputs[:, 0].tolist()
    for part in _parts(data):
        assert set(part.targets.tolist()) == set(range(len(counts)))
        assert all(targets[int(i)] == t for i, t in zip(part.inputs[:, 0], part.targets, strict=True))


def test_text_is_cut_by_position_and_targets_are_the_next_byte() -> None:
    text = bytes(numpy.random.RandomState(0).randint(0, 256, 5000).astype(numpy.uint8))
    data = from_text("t", text, "", window=16)
    assert data.task == "language-modeling" and data.classes == 256
    start = 0
    for part, share in zip(_parts(data), (4000, 500, 500), strict=True):
        piece = torch.tensor(list(text[start : start + share]))
        flat = part.inputs.flatten()
        assert torch.equal(flat, piece[: len(flat)])
        assert torch.equal(part.targets.flatten(), piece[1 : len(flat) + 1])
        start += share


def test_pydoc_keeps_a_paragraph_only_once() -> None:
    data = load_data("pydoc")
    text = bytes(torch.cat([part.inputs.flatten() for part in _parts(data)]).tolist()).decode(errors="replace")
    paragraphs = [" ".join(p.split()) for p in text.split("\n\n") if len(p) > 200]
    assert len(paragraphs) == len(set(paragraphs)) > 100


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(MissingExtra, match=r"data set 'digits' needs scikit-learn.*computekit\[data\]"):
        datasets._digits.__wrapped__()


def test_an_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(UnknownName, match=r"'digts'; did you mean digits\?"):
        load_data("digts")


# -- files of the user's own -----------------------------------------------------------------------------------------


def test_npz_with_inputs_and_targets(tmp_path: Path) -> None:
    x, y = _arrays()
    numpy.savez(tmp_path / "a.npz", x=x, y=y)
    data = load_data(str(tmp_path / "a.npz"))
    assert sum(map(len, _parts(data))) == 40 and data.classes == 4
    assert data.name == "a.npz" and str(tmp_path) not in str(data.describe())


def test_npz_with_its_own_test_split_keeps_it(tmp_path: Path) -> None:
    x, y = _arrays()
    numpy.savez(tmp_path / "a.npz", x_train=x, y_train=y, x_test=x[:7] + 1000, y_test=y[:7])
    data = load_data(str(tmp_path / "a.npz"))
    assert torch.equal(data.test.inputs, torch.from_numpy(x[:7] + 1000))
    assert len(data.train) + len(data.validation) == 40


def test_txt_is_read_as_bytes(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xff\x00\xe4" * 3000)
    assert load_data(str(tmp_path / "a.txt")).train.inputs[0, :3].tolist() == [255, 0, 228]


def test_module_callable_in_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_data_module.py").write_text(
        "import numpy\ndef load():\n    return numpy.ones((30, 5)), numpy.arange(30) % 3\ndef bad():\n    return 3\n"
    )
    monkeypatch.chdir(tmp_path)
    assert load_data("my_data_module:load").sample_shape == (5,)
    with pytest.raises(DataProblem, match="returned a int"):
        load_data("my_data_module:bad")
    with pytest.raises(UnknownName, match="did you mean load"):
        load_data("my_data_module:lod")


def test_a_data_set_of_a_plugin_is_held_to_the_same() -> None:
    plugin = types.ModuleType("odd")
    odd = [computekit.Dataset("odd", "odd", lambda: None)]  # type: ignore[arg-type, return-value]
    plugin.computekit_datasets = computekit.hookimpl(lambda: odd)  # type: ignore[attr-defined]
    with host.using(host.Host.of(("odd", plugin))), pytest.raises(DataProblem, match="odd: returned a NoneType"):
        load_data("odd")


def test_images_get_channels_first_and_bytes_become_fractions() -> None:
    y = numpy.arange(30) % 3
    assert from_arrays("a", numpy.zeros((30, 9, 8)), y, "").sample_shape == (1, 9, 8)
    assert from_arrays("a", numpy.zeros((30, 9, 8, 3)), y, "").sample_shape == (3, 9, 8)
    assert from_arrays("a", numpy.zeros((30, 3, 9, 8)), y, "").sample_shape == (3, 9, 8)
    full = from_arrays("a", numpy.full((30, 4), 255, dtype=numpy.uint8), y, "")
    assert full.train.inputs.unique().tolist() == [1.0]


_GOOD = numpy.ones((30, 4), dtype=numpy.float32)
_NAN = numpy.where(numpy.arange(120).reshape(30, 4) == 20, numpy.nan, _GOOD)
_LABELS = numpy.arange(30) % 3


@pytest.mark.parametrize(
    ("inputs", "targets", "message"),
    [
        (_NAN, _LABELS, "1 of 30 inputs hold NaN or infinity, the first at index 5"),
        (_GOOD, _LABELS[:20], "30 inputs but 20 targets"),
        (_GOOD, _LABELS + 0.5, "targets are of type float64"),
        (_GOOD, _LABELS - 1, "targets hold -1"),
        (_GOOD, _LABELS * 2, "class 1 has 0 samples"),
        (_GOOD, numpy.eye(30), r"targets have shape \(30, 30\)"),
        (_GOOD[:, 0], _LABELS, r"inputs have shape \(30,\)"),
        (_GOOD[:0], _LABELS[:0], r"inputs have shape \(0, 4\)"),
        (numpy.full((30, 4), "x"), _LABELS, "inputs are of type <U1"),
        (_GOOD, numpy.where(_LABELS == 0, numpy.nan, 1.0), "targets are of type float64"),
        (_GOOD, numpy.where(_LABELS == 0, numpy.inf, 1.0), "targets are of type float64"),
        (_GOOD, numpy.where(_LABELS == 0, 10**12, 1), "targets hold 1000000000000, but there are 30 samples"),
        (_GOOD * numpy.float64(1e300), _LABELS, "inputs hold NaN or infinity"),
    ],
)
def test_unusable_arrays_say_what_is_wrong(inputs: Any, targets: Any, message: str) -> None:
    with pytest.raises(DataProblem, match=message):
        from_arrays("a", inputs, targets, "")


def test_unusable_files_say_what_is_wrong(tmp_path: Path) -> None:
    cases: dict[str, tuple[bytes, str]] = {
        "empty.npz": (b"", "not a readable .npz"),
        "text.npz": (b"hello", "not a readable .npz"),
        "short.txt": (b"hello", "has 5 bytes"),
        "table.csv": (b"1,2", "not a kind of data file"),
    }
    for name, (content, message) in cases.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ComputekitError, match=message):
            load_data(str(tmp_path / name))
    numpy.savez(tmp_path / "object.npz", x=numpy.array([{}], dtype=object), y=[0])
    numpy.savez(tmp_path / "names.npz", foo=[1], bar=[2])
    numpy.savez(tmp_path / "half.npz", x_train=[[1.0]])
    for name, message in [
        ("object", "readable"),
        ("names", "holds foo, bar"),
        ("half", "not y_train"),
        ("no", "no such"),
    ]:
        with pytest.raises(FileProblem, match=message):
            load_data(str(tmp_path / f"{name}.npz"))


def test_inputs_alone_are_split_and_token_ids_stay_whole() -> None:
    data = datasets.from_inputs("d", numpy.arange(60).reshape(20, 3), "here")
    assert data.task == "inputs"
    assert [len(split) for split in (data.train, data.validation, data.test)] == [14, 2, 4]
    assert data.train.inputs.dtype == torch.int64
    rows = torch.cat([split.inputs for split in (data.train, data.validation, data.test)])[:, 0]
    assert sorted(rows.tolist()) == list(range(0, 60, 3))
    assert datasets.from_inputs("d", numpy.random.rand(20, 3), "here").train.inputs.dtype == torch.float32
    with pytest.raises(datasets.DataProblem):
        datasets.from_inputs("d", numpy.zeros((2, 3)), "here")
