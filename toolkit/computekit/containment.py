"""Running a third party's module or hook so that what it does to the process stays its own problem.

While a plugin is imported, and while one of its hooks runs, standard output is a file of ours, on the level of the file
descriptor too, so that neither ``os.write(1, ...)`` nor a child process can spoil output that scripts read. Afterwards
the process is as it was before: `_WATCHED` lists what is put back. Commands run uncontained: they are what the user
asked for.

Imported only where there is a third-party plugin, so that a start without one does not pay for it.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import locale
import os
import signal
import sys
import tempfile
import threading
import types
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from .errors import ComputekitError

_SIGNALS = tuple(
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGALRM", "SIGCHLD", "SIGPIPE", "SIGUSR1", "SIGUSR2")
    if hasattr(signal, name)
)


@dataclass
class Containment:
    """What a plugin did while it was contained; complete when the context has ended."""

    printed: str = ""
    """What went to standard output."""
    effects: list[str] = field(default_factory=list)
    """What it did to the process ("changes the umask"), put back or not."""


class OwnInterrupt(ComputekitError):
    """A plugin raised KeyboardInterrupt, and the user had not pressed Ctrl-C."""

    def __str__(self) -> str:
        return "it raised KeyboardInterrupt"


lingering: list[threading.Thread] = []
"""Threads that plugins started when they were imported, or in a hook, and for which Python would wait at exit."""


class _Watched(NamedTuple):
    """A part of the process's state: what it is called, how it is read, and how it is put back."""

    name: str
    read: Callable[[], Any]
    put_back: Callable[[Any], object]


def _folder() -> Path | None:
    try:
        return Path.cwd()
    except OSError:  # somebody deleted it
        return None


def _change_folder(path: Path | None) -> None:
    if path is not None:
        os.chdir(path)


def _put_back_environment(before: dict[str, str]) -> None:
    for name in os.environ.keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)


def _arguments() -> tuple[list[str], tuple[str, ...]]:
    arguments = getattr(sys, "argv", [])
    return arguments, tuple(arguments)


def _put_back_arguments(before: tuple[list[str], tuple[str, ...]]) -> None:
    sys.argv, values = before
    sys.argv[:] = values


def _handlers() -> dict[int, Any]:
    return {number: signal.getsignal(number) for number in _SIGNALS}


def _put_back_handlers(before: dict[int, Any]) -> None:
    for number, handler in before.items():
        if handler is not None and threading.current_thread() is threading.main_thread():
            signal.signal(number, handler)


def _filters() -> tuple[Any, ...]:
    return (*warnings.filters, warnings.showwarning)


def _put_back_filters(before: tuple[Any, ...]) -> None:
    *filters, warnings.showwarning = before
    warnings.filters[:] = filters  # type: ignore[index]
    with warnings.catch_warnings():  # on its way in it has the module look at the list again
        pass


def _logging() -> tuple[Any, ...]:
    """Level and handlers of the root logger; what they are before anybody imports logging."""
    if "logging" not in sys.modules:
        return (30,)
    root = sys.modules["logging"].getLogger()
    return (root.level, *root.handlers)


def _put_back_logging(before: tuple[Any, ...]) -> None:
    root = sys.modules["logging"].getLogger()
    root.setLevel(before[0])
    root.handlers[:] = before[1:]


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _streams() -> tuple[Any, ...]:
    return tuple(getattr(sys, name, None) for name in ("stdin", "stdout", "stderr"))


def _put_back_streams(before: tuple[Any, ...]) -> None:
    sys.stdin, sys.stdout, sys.stderr = before


_WATCHED = (
    _Watched("the working folder", _folder, _change_folder),
    _Watched("environment variables", lambda: dict(os.environ), _put_back_environment),
    _Watched("sys.argv", _arguments, _put_back_arguments),
    _Watched("sys.stdin, stdout or stderr", _streams, _put_back_streams),
    _Watched("sys.excepthook", lambda: sys.excepthook, lambda hook: setattr(sys, "excepthook", hook)),
    _Watched("signal handlers", _handlers, _put_back_handlers),
    _Watched("the locale", lambda: locale.setlocale(locale.LC_ALL), lambda name: locale.setlocale(locale.LC_ALL, name)),
    _Watched("warning filters", _filters, _put_back_filters),
    _Watched("the root logger", _logging, _put_back_logging),
    _Watched("the umask", _umask, os.umask),
)


@contextlib.contextmanager
def contained() -> Iterator[Containment]:
    """Contain what the context does; see the module's text.

    Raises:
        KeyboardInterrupt: the user pressed Ctrl-C meanwhile, whatever the plugin made of it.
        OwnInterrupt: the plugin raised KeyboardInterrupt by itself.
    """
    result = Containment()
    previous = signal.getsignal(signal.SIGINT)
    pressed = False

    def note_interrupt(number: int, frame: types.FrameType | None) -> None:
        nonlocal pressed
        pressed = True
        previous(number, frame)  # type: ignore[operator, misc]

    noting = callable(previous) and threading.current_thread() is threading.main_thread()
    if noting:
        signal.signal(signal.SIGINT, note_interrupt)
    try:
        with _output_to(result), _state_kept(result):
            yield result
    except KeyboardInterrupt as error:
        if not pressed:
            raise OwnInterrupt from error
    finally:
        if noting:
            signal.signal(signal.SIGINT, previous)
        if pressed:
            raise KeyboardInterrupt


@contextlib.contextmanager
def _state_kept(result: Containment) -> Iterator[None]:
    """Put back what `_WATCHED` lists, and name what was changed."""
    before = [watched.read() for watched in _WATCHED]
    threads, callbacks = set(threading.enumerate()), _exit_callbacks()
    try:
        yield
    finally:
        for watched, old in zip(_WATCHED, before, strict=True):
            new = watched.read()
            if new != old:
                result.effects.append(f"changes {watched.name}{_which(old, new)}")
                with contextlib.suppress(OSError, ValueError):  # a folder that is gone, a handler that C installed
                    watched.put_back(old)
        started = [thread for thread in threading.enumerate() if thread not in threads and not thread.daemon]
        if started:
            lingering.extend(started)
            result.effects.append("leaves a thread running")
        if _exit_callbacks() > callbacks:
            result.effects.append("registers an exit handler")


def _which(old: Any, new: Any) -> str:
    """The names of the entries that differ, where there are names."""
    if not isinstance(new, dict):
        return ""
    differing = [key for key in new.keys() | old.keys() if new.get(key) != old.get(key)]
    return " " + ", ".join(sorted(getattr(key, "name", key) for key in differing))


class _Noted:
    """A stream that notes whether anything was written to it."""

    def __init__(self, stream: Any) -> None:
        self.stream, self.used = stream, False

    def write(self, text: str) -> Any:
        self.used = True
        return self.stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


@contextlib.contextmanager
def _output_to(result: Containment) -> Iterator[None]:
    """Catch standard output, that of ``print`` and that of file descriptor 1; note the use of standard error."""
    printed, noted = io.StringIO(), _Noted(sys.stderr)
    with tempfile.TemporaryFile() as file, contextlib.redirect_stdout(printed), contextlib.redirect_stderr(noted):
        _flush()
        try:
            real = os.dup(1)
        except OSError:  # closed: nothing can be written to it
            real = None
        else:
            os.dup2(file.fileno(), 1)
        try:
            yield
        finally:
            if real is not None:
                _flush()
                os.dup2(real, 1)
                os.close(real)
            file.seek(0)
            text = "" if printed.closed else printed.getvalue()
            result.printed = text + file.read().decode(errors="replace")
            if noted.used:
                result.effects.append("writes to standard error")


def _flush() -> None:
    """Write out what Python holds for file descriptor 1."""
    with contextlib.suppress(Exception):
        sys.__stdout__.flush()  # type: ignore[union-attr]


def _exit_callbacks() -> int:
    count = getattr(atexit, "_ncallbacks", None)  # of CPython
    return count() if count is not None else 0
