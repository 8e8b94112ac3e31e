"""Objects beside the weights of a trusted checkpoint: the file that is written opens with weights_only."""

from __future__ import annotations

import argparse
import collections
import datetime
import decimal
import enum
import random
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch import nn

from computekit import open_model, rewrite
from computekit.cli import main


class Colour(enum.Enum):
    RED = 1


class Settings(dict[str, Any]):
    """A dictionary with a class of its own, as many configuration libraries have it."""


class Slotted:
    __slots__ = ("a",)

    def __init__(self) -> None:
        self.a = 1


class Mine(nn.Parameter):
    pass


VALUES: dict[str, tuple[Any, Any]] = {
    "namespace": (argparse.Namespace(lr=0.1, out=Path("a/b")), {"lr": 0.1, "out": "a/b"}),
    "path": ({"p": PurePosixPath("/a/b")}, {"p": "/a/b"}),
    "array": (np.arange(6, dtype=np.float32).reshape(2, 3), [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]),
    "unsigned array": (np.arange(3, dtype=np.uint32), [0, 1, 2]),
    "empty array": (np.zeros((2, 0)), []),
    "no bytes": (b"", b""),
    "generator state": (random.Random(0).getstate()[:1], (3,)),
    "frozenset": (frozenset([1]), [1]),
    "defaultdict": (collections.defaultdict(int, {"a": 1}), {"a": 1}),
    "empty defaultdict": (collections.defaultdict(list), {}),
    "a dictionary's subclass": (Settings(a=Settings(b=1)), {"a": {"b": 1}}),
    "slots": (Slotted(), {"a": 1}),
    "type": (int, "builtins.int"),
    "decimal": (decimal.Decimal("1.5"), "decimal.Decimal('1.5')"),
    "duration": (datetime.timedelta(3), "datetime.timedelta(3, 0, 0)"),
    "tuple": ((Path("a"), [Path("b")]), ("a", ["b"])),
    "key": ({Path("a"): 1}, {"pathlib.PosixPath('a')": 1}),
}


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
@pytest.mark.parametrize("name", VALUES)
def test_objects_beside_the_weights_become_plain(name: str, legacy: bool, tmp_path: Path) -> None:
    before, after = VALUES[name]
    document = {"model": nn.Linear(8, 8).state_dict(), "besides": before, "trust": argparse.Namespace()}
    torch.save(document, tmp_path / "a.pt", _use_new_zipfile_serialization=not legacy)
    copy = _copied(tmp_path)
    assert copy["besides"] == after
    assert torch.equal(copy["model"]["weight"], document["model"]["weight"])


def _copied(folder: Path) -> Any:
    rewrite(open_model(folder / "a.pt", trust_pickle=True), folder / "b.pt", lambda info, load: None)
    assert open_model(folder / "b.pt").tensors  # without trust
    return torch.load(folder / "b.pt", weights_only=True)


@pytest.mark.parametrize("protocol", [2, 4])
def test_a_frozenset_of_any_protocol(protocol: int, tmp_path: Path) -> None:
    torch.save(
        {"model": nn.Linear(8, 8).state_dict(), "f": frozenset("ab")}, tmp_path / "a.pt", pickle_protocol=protocol
    )
    assert set(_copied(tmp_path)["f"]) == {"a", "b"}


def test_objects_that_refer_to_themselves(tmp_path: Path) -> None:
    one = argparse.Namespace()
    one.me, one.other = one, [one]
    torch.save({"model": nn.Linear(8, 8).state_dict(), "one": one}, tmp_path / "a.pt")
    found = _copied(tmp_path)["one"]
    assert found["me"] is found and found["other"][0] is found


def test_an_enumeration_is_named(tmp_path: Path) -> None:
    torch.save({"model": nn.Linear(8, 8).state_dict(), "colour": Colour.RED}, tmp_path / "a.pt")
    assert "Colour" in _copied(tmp_path)["colour"]


def test_a_tensor_of_a_class_is_an_ordinary_one(tmp_path: Path) -> None:
    storage = torch.arange(40.0)
    odd = torch.Tensor._make_subclass(Mine, storage[3:35].view(8, 4).t())
    odd.note = argparse.Namespace(a=1)  # type: ignore[attr-defined]
    torch.save({"odd": odd, "fc.weight": torch.ones(4, 4)}, tmp_path / "a.pt")
    copy = _copied(tmp_path)
    assert torch.equal(copy["odd"], storage[3:35].view(8, 4).t())


def test_a_module_deep_in_a_checkpoint_is_its_state_dict(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    torch.save({"a": {"trained": module}, "epoch": 1}, tmp_path / "a.pt")
    assert list(_copied(tmp_path)["a"]["trained"]) == list(module.state_dict())


def test_what_quantize_writes_with_trust_is_dequantized_without(tmp_path: Path) -> None:
    weight = torch.randn(64, 64)
    torch.save({"state_dict": {"fc.weight": weight}, "args": argparse.Namespace(lr=0.1)}, tmp_path / "a.pt")
    small, back = tmp_path / "small.pt", tmp_path / "back.pt"
    for words in (
        ["quantize", "--int8", tmp_path / "a.pt", "--trust-pickle", "-o", small],
        ["dequantize", small, "-o", back],
    ):
        result = CliRunner().invoke(main, list(map(str, words)))
        assert result.exit_code == 0, result.output
    assert torch.load(small, weights_only=True)["args"] == {"lr": 0.1}
    restored = torch.load(back, weights_only=True)["state_dict"]["fc.weight"]
    assert (restored - weight).abs().max() <= weight.abs().max() / 254 * 1.001


def test_dequantize_takes_trust_too(tmp_path: Path) -> None:
    torch.save({"state_dict": {"fc.weight": torch.randn(64, 64)}}, tmp_path / "a.pt")
    small, back = tmp_path / "small.pt", tmp_path / "back.pt"
    assert CliRunner().invoke(main, ["quantize", "--int8", str(tmp_path / "a.pt"), "-o", str(small)]).exit_code == 0
    torch.save({**torch.load(small), "args": argparse.Namespace(lr=0.1)}, small)
    refused = CliRunner().invoke(main, ["dequantize", str(small), "-o", str(back)])
    assert refused.exit_code == 1 and not back.exists()
    accepted = CliRunner().invoke(main, ["dequantize", str(small), "-o", str(back), "--trust-pickle"])
    assert accepted.exit_code == 0, accepted.output
    assert torch.load(back, weights_only=True)["args"] == {"lr": 0.1}
