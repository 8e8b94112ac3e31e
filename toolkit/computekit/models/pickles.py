"""Pickles as inert data: `parse` reads one without importing or calling anything.

A pickle is a program. `parse` runs its stack machine, but where the program would import a name it puts a `Global`,
and where it would call something it puts a `Call`. Containers, strings and numbers become themselves. So a hostile
pickle yields a description of what it wanted to do, and it can be written back unchanged.

The opcodes are those of Python's ``pickletools``; protocols 0 to 5 are read. `pickle_writing.emit` writes protocol 2.
"""

from __future__ import annotations

import pickletools
import struct
from _compat_pickle import IMPORT_MAPPING, NAME_MAPPING
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import IO, Any

_ABSENT = object()
_MAX_BYTES = 1 << 28
_MAX_OPERATIONS = 20_000_000  # some ten seconds and a gigabyte of empty lists; checkpoints have thousands
_MAX_LINE = 1 << 16
_MAX_UNFOLDED = 1 << 20  # values in a tuple, those of the tuples in it included
_MAX_TUPLES_DEEP = 1000


class Malformed(ValueError):
    """The bytes are no pickle, or one that could never be unpickled."""


@dataclass(frozen=True)
class Global:
    """A name that the pickle would import; it is never imported here."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass(eq=False, repr=False)
class Call:
    """A call that the pickle would make, and what it would do to the result; nothing is called."""

    function: Any
    arguments: Any
    new: bool = False
    state: Any = _ABSENT
    items: list[Any] = field(default_factory=list)
    pairs: list[tuple[Any, Any]] = field(default_factory=list)

    @property
    def has_state(self) -> bool:
        return self.state is not _ABSENT

    def __repr__(self) -> str:  # what it is called with may be endless
        return f"{self.function}(...)" if isinstance(self.function, Global) else "a call"


@dataclass(eq=False)
class Persistent:
    """A reference to something outside the pickle, such as a tensor's storage."""

    id: Any


class Ordered(dict[Any, Any]):
    """A ``collections.OrderedDict``; ``state`` holds its attributes (torch keeps ``_metadata`` there)."""

    state: Any = _ABSENT

    @property
    def has_state(self) -> bool:
        return self.state is not _ABSENT

    def set_state(self, state: Any) -> Ordered:
        self.state = state
        return self


ORDERED_DICT = Global("collections", "OrderedDict")


def parse(
    stream: IO[bytes],
    reduce: Callable[[Any, Any], Any] = lambda function, arguments: Call(function, arguments),
    persistent: Callable[[Any], Any] = Persistent,
) -> Any:
    """Read the pickle that starts at the stream's position; the stream is left behind its end.

    ``reduce(function, arguments)`` and ``persistent(id)`` build the values of calls and of outside references; they
    get inert values and must not execute anything either.

    Raises:
        Malformed: not a pickle, or truncated.
    """
    machine = _Machine(reduce, persistent)
    try:
        operations = pickletools.genops(_Bounded(stream))  # type: ignore[arg-type]
        for count, (opcode, argument, _) in enumerate(operations):
            machine.step(opcode.name, argument)
            if count > _MAX_OPERATIONS:
                raise Malformed(f"the pickle has more than {_MAX_OPERATIONS} instructions")
    except Malformed:
        raise
    except (ValueError, TypeError, IndexError, KeyError, AttributeError, OverflowError, struct.error) as error:
        raise Malformed(str(error) or type(error).__name__) from error
    if len(machine.stack) != 1:
        raise Malformed("the pickle leaves more than one object")
    return machine.stack[0]


class _Bounded:
    """Keeps a damaged length or a missing line end from pulling a whole file of tensors into memory."""

    def __init__(self, stream: IO[bytes]) -> None:
        self.stream, self.left = stream, _MAX_BYTES

    def read(self, count: int) -> bytes:
        self.left -= count
        if self.left < 0:
            raise Malformed(f"the pickle is longer than {_MAX_BYTES} bytes")
        return self.stream.read(count)

    def readline(self) -> bytes:
        line = self.stream.readline(_MAX_LINE)
        self.left -= len(line)
        return line


_PUSH_ARGUMENT = frozenset({
    "INT", "LONG", "LONG1", "LONG4", "BININT", "BININT1", "BININT2", "STRING", "BINSTRING", "SHORT_BINSTRING",
    "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "FLOAT",
    "BINFLOAT", "BYTEARRAY8",
})  # fmt: skip
_PUSH_CONSTANT: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
    "EMPTY_DICT": dict,
    "EMPTY_SET": set,
}


class _Machine:
    """The pickle stack machine; see the module's docstring for what it does not do."""

    def __init__(self, reduce: Callable[[Any, Any], Any], persistent: Callable[[Any], Any]) -> None:
        self.stack: list[Any] = []
        self.marks: list[list[Any]] = []
        self.memo: dict[int, Any] = {}
        self.unfolded: dict[int, tuple[Any, int, int]] = {}  # tuples and frozensets by id, their sizes and depths
        self.reduce, self.persistent = reduce, persistent
        self.protocol = 0

    def step(self, name: str, argument: Any) -> None:
        if name in _PUSH_ARGUMENT:
            self.stack.append(argument)
        elif name in _PUSH_CONSTANT:
            self.stack.append(_PUSH_CONSTANT[name]())
        elif name == "PROTO":
            self.protocol = argument
        elif name in ("FRAME", "STOP"):
            pass
        else:
            handler = getattr(self, f"_{name.lower()}", None)
            if handler is None:
                raise Malformed(f"opcode {name} is not used by model files")
            handler(argument)

    def _until_mark(self) -> list[Any]:
        items, self.stack = self.stack, self.marks.pop()
        return items

    def _mark(self, _: Any) -> None:
        self.marks.append(self.stack)
        self.stack = []

    def _pop(self, _: Any) -> None:
        if self.stack:
            self.stack.pop()
        else:
            self._until_mark()

    def _pop_mark(self, _: Any) -> None:
        self._until_mark()

    def _dup(self, _: Any) -> None:
        self.stack.append(self.stack[-1])

    # -- memo ----------------------------------------------------------------------------------------------------

    def _put(self, index: int) -> None:
        self.memo[index] = self.stack[-1]

    _binput = _long_binput = _put

    def _memoize(self, _: Any) -> None:
        self.memo[len(self.memo)] = self.stack[-1]

    def _get(self, index: int) -> None:
        self.stack.append(self.memo[index])

    _binget = _long_binget = _get

    # -- containers ----------------------------------------------------------------------------------------------

    def _fixed(self, items: tuple[Any, ...] | frozenset[Any]) -> Any:
        """``items``, unless whoever looks into all the tuples in them, to hash or to print them, would never end.

        Python itself does so in C, where neither time nor the depth of the calls is limited.
        """
        inner = [self.unfolded[id(item)] for item in items if id(item) in self.unfolded]
        size = len(items) + sum(known[1] for known in inner)
        depth = 1 + max((known[2] for known in inner), default=0)
        if size > _MAX_UNFOLDED or depth > _MAX_TUPLES_DEEP:
            raise Malformed(f"a tuple unfolds to {size} values, {depth} deep")
        self.unfolded[id(items)] = (items, size, depth)
        return items

    def _tuple(self, _: Any) -> None:
        items = self._fixed(tuple(self._until_mark()))
        self.stack.append(items)

    def _tuple1(self, _: Any) -> None:
        self.stack[-1:] = [self._fixed((self.stack[-1],))]

    def _tuple2(self, _: Any) -> None:
        self.stack[-2:] = [self._fixed((self.stack[-2], self.stack[-1]))]

    def _tuple3(self, _: Any) -> None:
        self.stack[-3:] = [self._fixed((self.stack[-3], self.stack[-2], self.stack[-1]))]

    def _list(self, _: Any) -> None:
        items = self._until_mark()
        self.stack.append(items)

    def _dict(self, _: Any) -> None:
        items = self._until_mark()
        self.stack.append(dict(_paired(items)))

    def _frozenset(self, _: Any) -> None:
        items = self._fixed(frozenset(self._until_mark()))
        self.stack.append(items)

    def _append(self, _: Any) -> None:
        self._extend([self.stack.pop()])

    def _appends(self, _: Any) -> None:
        self._extend(self._until_mark())

    def _extend(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if isinstance(target, Call):
            target.items.extend(items)
        elif isinstance(target, list):
            target.extend(items)
        else:
            raise Malformed(f"appends to a {type(target).__name__}")

    def _additems(self, _: Any) -> None:
        items, target = self._until_mark(), self.stack[-1]
        if not isinstance(target, set):
            raise Malformed(f"adds to a {type(target).__name__}")
        target.update(items)

    def _setitem(self, _: Any) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self._update([(key, value)])

    def _setitems(self, _: Any) -> None:
        self._update(list(_paired(self._until_mark())))

    def _update(self, pairs: list[tuple[Any, Any]]) -> None:
        target = self.stack[-1]
        if isinstance(target, Call):
            target.pairs.extend(pairs)
        elif isinstance(target, dict):
            target.update(pairs)
        else:
            raise Malformed(f"sets items of a {type(target).__name__}")

    # -- what would be imported and called -----------------------------------------------------------------------

    def _global(self, argument: str) -> None:
        module, _, name = argument.partition(" ")
        self.stack.append(_named(module, name, self.protocol))

    def _stack_global(self, _: Any) -> None:
        name, module = self.stack.pop(), self.stack.pop()
        self.stack.append(_named(module, name, self.protocol))

    def _reduce(self, _: Any) -> None:
        arguments, function = self.stack.pop(), self.stack.pop()
        self._call(function, arguments, new=False)

    def _newobj(self, _: Any) -> None:
        arguments, function = self.stack.pop(), self.stack.pop()
        self._call(function, arguments, new=True)

    def _newobj_ex(self, _: Any) -> None:
        keywords, arguments, function = self.stack.pop(), self.stack.pop(), self.stack.pop()
        if keywords:
            raise Malformed("an object with keyword arguments (protocol 4) is not supported")
        self._call(function, arguments, new=True)

    def _inst(self, argument: str) -> None:
        module, _, name = argument.partition(" ")
        arguments = tuple(self._until_mark())
        self._call(_named(module, name, self.protocol), arguments, new=False)

    def _obj(self, _: Any) -> None:
        function, *arguments = self._until_mark()
        self._call(function, tuple(arguments), new=False)

    def _call(self, function: Any, arguments: Any, new: bool) -> None:
        if not isinstance(function, (Global, Call)) or not isinstance(arguments, tuple):
            raise Malformed("calls something that is not a function")
        if function == ORDERED_DICT and len(arguments) <= 1:
            self.stack.append(Ordered(*arguments))
        elif new:
            self.stack.append(Call(function, arguments, new=True))
        else:
            self.stack.append(self.reduce(function, arguments))

    def _build(self, _: Any) -> None:
        state, target = self.stack.pop(), self.stack[-1]
        if isinstance(target, Ordered):
            target.set_state(state)
        elif isinstance(target, Call):
            target.state = state
        else:
            raise Malformed(f"sets attributes of a {type(target).__name__}")

    def _persid(self, argument: str) -> None:
        self.stack.append(self.persistent(argument))

    def _binpersid(self, _: Any) -> None:
        self.stack.append(self.persistent(self.stack.pop()))


def _paired(items: list[Any]) -> Iterator[tuple[Any, Any]]:
    if len(items) % 2:
        raise Malformed("a key without a value")
    return zip(items[::2], items[1::2], strict=True)


def _named(module: Any, name: Any, protocol: int) -> Global:
    """The global of these names; protocols below 3 spell those of the standard library as Python 2 did."""
    for part in (module, name):
        if not isinstance(part, str) or not part or any(c.isspace() for c in part):
            raise Malformed(f"{part!r} is not a name")
    if protocol < 3:
        module, name = NAME_MAPPING.get((module, name), (IMPORT_MAPPING.get(module, module), name))
    return Global(module, name)


def same(value: Any) -> Any:
    """For `walk` and `emit`: nothing is replaced."""
    return value


def _nothing(_value: Any) -> list[Any]:
    return []


def walk(
    root: Any, inside: Callable[[Any], list[Any]] = _nothing, replace: Callable[[Any], Any] = same
) -> Iterator[Any]:
    """Every value reachable from ``root`` once, parents first; the contents of a `Call` included.

    ``inside(value)`` adds the contents of values of the caller's own kinds; ``replace(value)`` is asked first for the
    value to visit instead.
    """
    seen: set[int] = set()
    waiting = [root]
    while waiting:
        value = waiting.pop()
        if isinstance(value, (str, int, float, bytes, type(None))) or id(value) in seen:
            continue
        seen.add(id(value))
        value = replace(value)
        yield value
        waiting.extend(reversed([*_children(value), *inside(value)]))


def _children(value: Any) -> list[Any]:
    if isinstance(value, dict):
        inside = [part for pair in value.items() for part in pair]
        return [*inside, value.state] if isinstance(value, Ordered) and value.has_state else inside
    if isinstance(value, (list, tuple, set, frozenset)):
        return list(value)
    if isinstance(value, Call):
        inside = [value.function, value.arguments, *value.items, *(part for pair in value.pairs for part in pair)]
        return [*inside, value.state] if value.has_state else inside
    if isinstance(value, Persistent):
        return [value.id]
    return []
