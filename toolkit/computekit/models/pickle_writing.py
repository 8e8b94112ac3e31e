"""Writes the inert values of `pickles` as a pickle of protocol 2, the one that torch writes and reads."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from .pickles import ORDERED_DICT, Call, Global, Malformed, Ordered, Persistent, same

_MAX_DEPTH = 150
_ENCODE = Global("_codecs", "encode")


def emit(root: Any, replace: Callable[[Any], Any] = same) -> bytes:
    """The pickle (protocol 2) of inert values; ``replace(value)`` is asked first for what to write instead of it.

    An object that is reachable twice is written once, so sharing and cycles survive.

    Raises:
        Malformed: nested deeper than any unpickler would follow.
    """
    emitter = _Emitter(replace)
    emitter.out += b"\x80\x02"
    try:
        emitter.write(root, 0)
    except RecursionError as error:
        raise Malformed("objects are nested too deeply") from error
    emitter.out += b"."
    return bytes(emitter.out)


class _Emitter:
    def __init__(self, replace: Callable[[Any], Any]) -> None:
        self.out = bytearray()
        self.replace = replace
        self.memo: dict[Any, int] = {}
        self.alive: list[Any] = []  # what `memo` knows by id must not be freed

    def write(self, original: Any, depth: int) -> None:
        if depth > _MAX_DEPTH:
            raise Malformed(f"objects are nested more than {_MAX_DEPTH} deep")
        if self._recall(original):
            return
        value = self.replace(original)
        if isinstance(value, (str, Global)) and self._recall(value):
            return
        if value is None or isinstance(value, bool):
            self.out += {None: b"N", True: b"\x88", False: b"\x89"}[value]
        elif isinstance(value, int):
            self._integer(value)
        elif isinstance(value, float):
            self.out += b"G" + struct.pack(">d", value)
        elif isinstance(value, str):
            raw = value.encode("utf-8", "surrogatepass")
            self.out += b"X" + struct.pack("<I", len(raw)) + raw
            self._remember(value)
        elif isinstance(value, Global):
            self.out += f"c{value.module}\n{value.name}\n".encode()
            self._remember(value)
        else:
            self._compound(original, value, depth + 1)

    def _integer(self, value: int) -> None:
        if 0 <= value < 256:
            self.out += b"K" + bytes([value])
        elif -(2**31) <= value < 2**31:
            self.out += b"J" + struct.pack("<i", value)
        else:
            raw = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
            if len(raw) > 255:
                raise Malformed("an integer of more than 255 bytes")
            self.out += b"\x8a" + bytes([len(raw)]) + raw

    def _compound(self, original: Any, value: Any, depth: int) -> None:
        if isinstance(value, tuple):
            self.out += b"("
            for item in value:
                self.write(item, depth)
            self.out += b"t"
            self._remember(original)
        elif isinstance(value, dict):
            self._dictionary(original, value, depth)
        elif isinstance(value, list):
            self.out += b"]"
            self._remember(original)
            self._items(value, depth)
        elif isinstance(value, (set, frozenset, bytes, bytearray)):
            self.write(_as_call(value), depth)
            self._remember(original)
        elif isinstance(value, Persistent):
            self.write(value.id, depth)
            self.out += b"Q"
        elif isinstance(value, Call):
            self._call(original, value, depth)
        else:
            raise TypeError(f"cannot pickle a {type(value).__name__}")

    def _dictionary(self, original: Any, value: dict[Any, Any], depth: int) -> None:
        if isinstance(value, Ordered):
            self.write(ORDERED_DICT, depth)
            self.out += b")R"
        else:
            self.out += b"}"
        self._remember(original)
        self._pairs(list(value.items()), depth)
        if isinstance(value, Ordered) and value.has_state:
            self.write(value.state, depth)
            self.out += b"b"

    def _call(self, original: Any, value: Call, depth: int) -> None:
        self.write(value.function, depth)
        self.write(value.arguments, depth)
        self.out += b"\x81" if value.new else b"R"
        self._remember(original)
        self._items(value.items, depth)
        self._pairs(value.pairs, depth)
        if value.has_state:
            self.write(value.state, depth)
            self.out += b"b"

    def _items(self, items: list[Any], depth: int) -> None:
        if items:
            self.out += b"("
            for item in items:
                self.write(item, depth)
            self.out += b"e"

    def _pairs(self, pairs: list[tuple[Any, Any]], depth: int) -> None:
        if pairs:
            self.out += b"("
            for key, item in pairs:
                self.write(key, depth)
                self.write(item, depth)
            self.out += b"u"

    def _recall(self, value: Any) -> bool:
        index = self.memo.get(_memo_key(value))
        if index is None:
            return False
        self.out += b"h" + bytes([index]) if index < 256 else b"j" + struct.pack("<I", index)
        return True

    def _remember(self, value: Any) -> None:
        key = _memo_key(value)
        if key is None or key in self.memo:
            return
        index = self.memo[key] = len(self.memo)
        self.alive.append(value)
        self.out += b"q" + bytes([index]) if index < 256 else b"r" + struct.pack("<I", index)


def _memo_key(value: Any) -> Any:
    if isinstance(value, (str, Global)):
        return value
    if value is None or value == () or isinstance(value, (bool, int, float)):
        return None
    return id(value)


def _as_call(value: Any) -> Call:
    """Sets and bytes in protocol 2, written as torch and Python write them there."""
    if isinstance(value, bytes):
        return Call(_ENCODE, (value.decode("latin-1"), "latin1"))
    if isinstance(value, bytearray):
        return Call(Global("builtins", "bytearray"), (bytes(value),))
    ordered = sorted(value, key=repr)  # a set has no order of its own, and the bytes must not depend on the hash seed
    return Call(Global("builtins", "set"), (ordered,))  # weights_only knows no frozenset
