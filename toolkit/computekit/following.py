"""The content hash of a file that is being written from its beginning to its end, taken meanwhile in a thread."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue

_BLOCK = 1 << 26  # bytes between two visits; a smaller file is hashed as fast afterwards, and gets no thread
_CHUNK = 1 << 22
_wanted: dict[Path, Following | None] = {}


class Following:
    """Reads ``path`` behind its writer, hashes what is there and brings it to the disk, up to 64 MB at a time.

    The writer says with `reached` how far it is, changes nothing before that place, and calls `end` when the file is
    closed. It does nothing unless the hash is `wanted`, and then `digest` finds it ready.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.sha256: str | None = None
        self.state: tuple[int, int, int] | None = None
        self.thread = threading.Thread(target=self._follow, name=f"follow {path}", daemon=True)
        self._told = 0
        self._positions: SimpleQueue[int | None] = SimpleQueue()

    def reached(self, position: int) -> None:
        """The first ``position`` bytes are in the file, for others to read, and stay as they are."""
        if position - self._told < _BLOCK or self.path not in _wanted:
            return
        if not self._told:
            _wanted[self.path] = self
            self.thread.start()
        self._told = position
        self._positions.put(position)

    def end(self) -> None:
        """The file is closed: complete, or given up. Who changes it from now on changes its `state`."""
        if self._told:
            with suppress(OSError):  # it is gone
                self.state = state(self.path)
            self._positions.put(None)

    def _follow(self) -> None:
        hashed, done = hashlib.sha256(), 0
        buffer = memoryview(bytearray(_CHUNK))
        try:
            with self.path.open("rb", buffering=0) as stream:
                going = True
                while going:
                    position = self._positions.get()
                    going = position is not None
                    end = os.fstat(stream.fileno()).st_size if position is None else position
                    while done < end and (got := stream.readinto(buffer[: end - done])):
                        hashed.update(buffer[:got])
                        done += got
                    os.fsync(stream.fileno())
                self.sha256 = hashed.hexdigest()
        except OSError:
            pass  # whoever hashes the file afresh hears of it


@contextmanager
def wanted(path: Path) -> Iterator[None]:
    """Have ``path`` followed if what writes it in the block can be."""
    _wanted[path] = None
    try:
        yield
    finally:
        del _wanted[path]


def digest(path: Path) -> str | None:
    """Hex SHA-256 of a file that was followed while it was written; None if it was not, or was changed since."""
    follower = _wanted.get(path)
    if follower is None:
        return None
    follower.thread.join()
    return follower.sha256 if follower.state == state(path) else None


def state(path: Path) -> tuple[int, int, int]:
    """What the system changes when somebody writes to the file, or puts another one in its place."""
    stat = path.stat()
    return stat.st_ino, stat.st_size, stat.st_mtime_ns
