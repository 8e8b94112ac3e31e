"""Small files that would take forever: what refers to one object often, or nests without end, is bounded."""

from __future__ import annotations

import signal
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from computekit import ComputekitError, cli, open_model, rewrite
from computekit.models import pickles

_SECONDS = 60


@pytest.fixture(autouse=True)
def deadline() -> Iterator[None]:
    """Ends the process where the test would never end: hashing a tuple is one call in C, which no exception stops."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(_SECONDS)
    yield
    signal.alarm(0)


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value)) + value.encode()


def doubled(begin: bytes, middle: bytes, end: bytes, times: int = 60) -> bytes:
    """An empty container, put into a new one twice, which is put into a new one twice, and so on."""
    steps = (b"q%c0%bh%c%bh%c%b" % (i, begin, i, middle, i, end) for i in range(times))
    return begin[:1] + b"".join(steps)


LISTS = doubled(b"](", b"", b"e")
DICTIONARIES = doubled(b"}(K\x01", b"K\x02", b"u")
DOUBLED_TUPLE = b"K\x01" + b"2\x86" * 60
DEEP_TUPLE = b"N" + b"\x85" * 200_000
WEIGHT = text("w") + (
    b"ctorch._utils\n_rebuild_tensor_v2\n((X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\x000X\x03\0\0\0cpuK\x04tQ"
    b"K\0K\x04\x85K\x01\x85\x89}tR"
)
PICKLES = {
    "tuple": text("a") + DOUBLED_TUPLE,
    "tuple as key": DOUBLED_TUPLE + b"N",
    "tuple in a set": text("a") + b"\x8f(" + DOUBLED_TUPLE + b"\x90",
    "frozensets": text("a") + b"(K\x01\x91" + b"q\0\x85q\x010(h\0h\x01\x91" * 60,
    "deep tuple as key": DEEP_TUPLE + b"N",
    "deep tuple in a set": text("a") + b"\x8f(" + DEEP_TUPLE + b"\x90",
    "lists": text("a") + LISTS,
    "dictionaries": text("a") + DICTIONARIES,
    "argument": text("a") + b"cfoo\nbar\n" + LISTS + b"\x85R",
    "argument of a key": b"cfoo\nbar\n" + LISTS + b"\x85RN",
    "own metadata": text("computekit") + b"}" + text("arch") + LISTS + b"s",
    "name of a storage": text("a")
    + b"("
    + text("storage")
    + b"ctorch\nFloatStorage\n"
    + LISTS
    + text("cpu")
    + b"K\x01tQ",
    "outside reference": text("a") + b"(" + text("x") + LISTS + b"tQ",
    "deep lists": text("a") + b"]" * 2000 + b"a" * 1999,
    "deep lists beside a class": text("b") + b"cfoo\nbar\n" + text("a") + b"]" * 2000 + b"a" * 1999,
    "calls of calls": text("a") + b"cfoo\nbar\n" + b")R" * 100_000,
}


@pytest.mark.parametrize("name", PICKLES)
def test_endless_objects_beside_a_weight(name: str, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.pt", "w") as archive:
        archive.writestr("archive/data.pkl", b"\x80\x04}(" + WEIGHT + PICKLES[name] + b"u.")
        archive.writestr("archive/data/0", bytes(16))
    try:
        source = open_model(tmp_path / "a.pt", trust_pickle=True)
        assert list(source.tensors) == ["w"]
        rewrite(source, tmp_path / "b.pt", lambda info, load: None)
        assert (tmp_path / "b.pt").stat().st_size < 1_000_000
        torch.load(tmp_path / "b.pt", weights_only=True)
    except ComputekitError:
        pass
    result = CliRunner().invoke(cli.main, ["inspect", str(tmp_path / "a.pt"), "--json"])
    assert result.exit_code in (0, 1) and "internal error" not in result.output


def test_a_tuple_of_many_values_is_no_bomb() -> None:
    import io
    import pickle

    states = tuple(range(100_000))
    assert pickles.parse(io.BytesIO(pickle.dumps([states, (states, states)]))) == [states, (states, states)]
