"""What a trusted pickle holds besides tensors, as data that ``torch.load(weights_only=True)`` accepts.

Hyperparameters are often objects of classes that only the author's machine has. A file that computekit writes must
open everywhere, so such objects become their contents: an ``argparse.Namespace`` the dictionary of its attributes, a
path its text, a numpy array a list, a module its state_dict. What has no such contents becomes the text of the call
that would make it.
"""

from __future__ import annotations

import math
import reprlib
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any

from . import checkpoint, pickled_modules
from .checkpoint import LazyTensor, Storage
from .pickles import Call, Global, Ordered, Persistent, walk

_MAX_VALUES = 1 << 16  # of a numpy array that becomes a list
_MAX_TEXT = 200
_REPR = reprlib.Repr()  # an object that refers to one list often prints without end
_REPR.maxstring = _REPR.maxother = _REPR.maxlong = _MAX_TEXT
_DICTIONARIES = ("_content", "_val")  # where OmegaConf's nodes keep what they stand for


def plain(root: Any) -> Any:
    """``root`` without the calls and names that ``torch.load(weights_only=True)`` refuses; its tensors stay."""
    return _Plain().of(root)


def _is_plain(value: Any) -> bool:
    names = (str(inner) for inner in walk(value, checkpoint.contents) if isinstance(inner, Global))
    return all(map(checkpoint.is_harmless, names))


class _Plain:
    def __init__(self) -> None:
        self.known: dict[int, Any] = {}
        self.alive: list[Any] = []  # what `known` knows by id must not be freed

    def of(self, value: Any) -> Any:
        if value is None or isinstance(value, (str, bool, int, float, bytes, Storage, Persistent)):
            return value
        if id(value) not in self.known:
            self.alive.append(value)
            self.known[id(value)] = result = self._of(value)
            return result
        return self.known[id(value)]

    def _of(self, value: Any) -> Any:
        if isinstance(value, LazyTensor):
            return value if _is_plain(value) else checkpoint.bare(value)
        if isinstance(value, dict):
            return self._dictionary(value, value.items(), Ordered() if isinstance(value, Ordered) else {})
        if isinstance(value, list):
            return self._list(value, value)
        if isinstance(value, tuple):
            return tuple(map(self.of, value))
        if isinstance(value, (set, frozenset)):
            return set(value) if all(map(_is_plain, value)) else [self.of(item) for item in sorted(value, key=repr)]
        if isinstance(value, Global):
            return value if checkpoint.is_harmless(str(value)) else str(value)
        return self._call(value) if isinstance(value, Call) else value

    def _dictionary(self, value: Any, pairs: Any, new: dict[Any, Any]) -> dict[Any, Any]:
        self.known[id(value)] = new  # before its contents, which may refer back to it
        for key, item in pairs:
            name = key if _is_plain(key) else _text(key)
            new[name] = self.of(item)
        if isinstance(value, Ordered) and isinstance(new, Ordered) and value.has_state:
            new.set_state(self.of(value.state))
        return new

    def _list(self, value: Any, items: Any) -> list[Any]:
        new: list[Any] = []
        self.known[id(value)] = new
        new.extend(map(self.of, items))
        return new

    def _call(self, call: Call) -> Any:
        name = str(call.function)
        if pickled_modules.is_module(call):
            return self.of(pickled_modules.state_dict(call))
        if isinstance(call.function, Global) and checkpoint.is_harmless(name):
            return self._harmless(call)
        if name.startswith("pathlib.") and all(isinstance(part, str) for part in call.arguments):
            return str((PureWindowsPath if "Windows" in name else PurePosixPath)(*call.arguments))
        if name == "builtins.frozenset" and call.arguments:
            return self.of(call.arguments[0])
        array = _array(call)
        if array is not None:
            return array
        if call.pairs:
            return self._dictionary(call, call.pairs, {})
        if call.items:
            return self._list(call, call.items)
        attributes = _attributes(call)
        for key in _DICTIONARIES:
            if key in attributes:
                return self.of(attributes[key])
        if attributes:
            return self._dictionary(call, attributes.items(), {})
        if name == "collections.defaultdict":
            return {}
        return _text(call)

    def _harmless(self, call: Call) -> Call:
        new = Call(call.function, (), call.new)
        self.known[id(call)] = new
        new.arguments = self.of(call.arguments)
        new.items = [self.of(item) for item in call.items]
        new.pairs = [(self.of(key), self.of(item)) for key, item in call.pairs]
        if call.has_state:
            new.state = self.of(call.state)
        return new


def _attributes(call: Call) -> dict[Any, Any]:
    """The attributes that an object's state sets: a dictionary, or a pair of them if the class has slots."""
    states = call.state if isinstance(call.state, tuple) else (call.state,)
    return {key: value for state in states if isinstance(state, dict) for key, value in state.items()}


def _array(call: Call) -> Any:
    """A small numpy array of numbers as nested lists; the state is that of ``ndarray.__reduce__``."""
    if not str(call.function).endswith(".multiarray._reconstruct") or not isinstance(call.state, tuple):
        return None
    shape, kind, fortran, content = call.state[1:] if len(call.state) == 5 else (None, None, None, None)
    if not isinstance(shape, tuple) or not all(isinstance(size, int) and size >= 0 for size in shape) or fortran:
        return None
    values = checkpoint.numpy_values(kind, content)
    if values is None or len(values) != math.prod(shape) or len(values) > _MAX_VALUES:
        return None
    for size in reversed(shape[1:]):
        values = [values[i : i + size] for i in range(0, len(values), size)] if size else []
    return values if shape else values[0]


def _text(value: Any, depth: int = 0) -> str:
    """What a call would have been written as in Python, shortened."""
    if isinstance(value, Call):
        arguments = value.arguments if isinstance(value.arguments, tuple) and depth < 3 else ()
        shown = f"{value.function}({', '.join(_text(argument, depth + 1) for argument in arguments)})"
    else:
        shown = str(value) if isinstance(value, Global) else _REPR.repr(value)
    return shown if len(shown) <= _MAX_TEXT else f"{shown[:_MAX_TEXT]}..."
