"""The content hash of a file, taken in a thread of its own while a step works on the file."""

from __future__ import annotations

import threading
from pathlib import Path

from . import files, following
from .errors import FileProblem
from .records import FileRef


class Hashing:
    """Hashes ``path``, a file or folder, from now on; hashlib lets the other threads run meanwhile.

    Both readers share the system's file cache, so that the file comes from the disk once. Memory stays at one block.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._before = _state(path)
        self._found: FileRef | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._hash, name=f"hash {path}", daemon=True)  # an error must not wait
        self._thread.start()

    def wait(self) -> FileRef:
        """The file with its hash.

        Raises:
            FileProblem: it changed since then, so that the hash may be of other bytes than those that were used.
            OSError: it cannot be read.
        """
        self._thread.join()
        if self._error is not None:
            raise self._error
        assert self._found is not None
        if _state(self.path) != self._before:
            raise FileProblem(self.path, "changed while it was read", "run it again when nothing writes to it")
        return self._found

    def _hash(self) -> None:
        try:
            known = following.digest(self.path)
            if known is None:
                self._found = FileRef.of(self.path)
            else:
                self._found = FileRef(path=str(self.path), sha256=known, bytes=files.size_bytes(self.path))
        except BaseException as error:  # raised where it is waited for
            self._error = error


def _state(path: Path) -> list[tuple[int, int, int]]:
    return [following.state(file) for file in files.members(path)]
