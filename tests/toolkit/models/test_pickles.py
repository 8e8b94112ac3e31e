"""Pickles as inert data: what Python pickles is parsed, and what is written unpickles to the same."""

from __future__ import annotations

import io
import math
import pickle
from collections import Counter, OrderedDict
from pathlib import PurePosixPath
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from computekit.models import pickles
from computekit.models.pickle_writing import emit
from computekit.models.pickles import Call, Global, Malformed, Ordered, parse, walk

LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.frozensets(st.integers())
)
KEYS = st.text() | st.integers() | st.tuples(st.integers(), st.text())
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner) | st.dictionaries(KEYS, inner) | st.tuples(inner, inner) | st.sets(st.integers()),
    max_leaves=30,
)


def round_trip(value: Any, protocol: int) -> Any:
    return pickle.loads(emit(parse(io.BytesIO(pickle.dumps(value, protocol=protocol)))))


@settings(max_examples=200, deadline=None, derandomize=True)
@given(VALUES, st.integers(0, 5))
def test_plain_values_come_back(value: Any, protocol: int) -> None:
    assert round_trip(value, protocol) == value


@pytest.mark.parametrize("protocol", range(6))
def test_objects_come_back(protocol: int) -> None:
    ordered = OrderedDict([("b", 1), ("a", 2)])
    ordered.note = "kept"  # type: ignore[attr-defined]
    for value in (ordered, Counter("hello"), PurePosixPath("a/b"), complex(1, 2), bytearray(b"x"), range(3)):
        found = round_trip(value, protocol)
        assert found == value and type(found) is type(value)
    assert round_trip(ordered, protocol).note == "kept"
    assert math.isnan(round_trip(math.nan, protocol))


def test_sharing_and_cycles_come_back() -> None:
    shared = [1]
    value: list[Any] = [shared, shared]
    value.append(value)
    found = round_trip(value, 2)
    assert found[0] is found[1] and found[2] is found


def test_what_would_be_called_is_data() -> None:
    found = parse(io.BytesIO(pickle.dumps(PurePosixPath("a"), protocol=2)))
    assert isinstance(found, Call) and found.function == Global("pathlib", "PurePosixPath")
    assert {str(value) for value in walk(found) if isinstance(value, Global)} == {"pathlib.PurePosixPath"}
    assert isinstance(parse(io.BytesIO(pickle.dumps(OrderedDict(a=1)))), Ordered)


@pytest.mark.parametrize(
    "content",
    [
        b"", b".", b"N", b"0.", b"R.", b"b.", b"s.", b"u.", b"t.", b"e.", b"h\x05.", b"NN.", b"}N(s.", b"(NNu.",
        b"\x8b\xff\xff\xff\x7f", b"B\xff\xff\xff\xffx.", b"cos\n", b"]R.", b"NN\x81.", b"}(Nu.", b"}]Ns.",
        b"\xff.", b"I1e999\n.", b"\x8e" + b"\xff" * 8 + b".",
    ],
)  # fmt: skip
def test_nonsense_is_refused(content: bytes) -> None:
    with pytest.raises(Malformed):
        parse(io.BytesIO(content))


def test_a_stream_is_left_behind_the_pickle() -> None:
    stream = io.BytesIO(pickle.dumps(1) + pickle.dumps("two") + b"rest")
    assert parse(stream) == 1 and parse(stream) == "two" and stream.read() == b"rest"


def test_size_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pickles, "_MAX_OPERATIONS", 1000)
    with pytest.raises(Malformed, match="more than 1000 instructions"):
        parse(io.BytesIO(b"(" + b"]" * 2000 + b"l."))
    monkeypatch.setattr(pickles, "_MAX_BYTES", 1000)
    with pytest.raises(Malformed, match="longer than 1000 bytes"):
        parse(io.BytesIO(pickle.dumps("x" * 2000)))
