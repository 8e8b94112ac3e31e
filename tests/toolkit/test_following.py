import hashlib
import os
from pathlib import Path

import pytest

from computekit import following
from computekit.following import Following
from computekit.hashing import Hashing

BLOCK = 1 << 16


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "_BLOCK", BLOCK)


def write(path: Path, content: bytes, step: int = 10_000) -> None:
    """Write ``content`` as a writer does that is followed, ``step`` bytes at a time."""
    follower = Following(path)
    with path.open("wb", buffering=0) as stream:
        for start in range(0, len(content), step):
            stream.write(content[start : start + step])
            follower.reached(stream.tell())
    follower.end()


@pytest.mark.parametrize("size", [BLOCK, BLOCK + 1, 5 * BLOCK + 123])
@pytest.mark.parametrize("step", [10_000, 3 * BLOCK])
def test_the_hash_is_that_of_the_file(size: int, step: int, tmp_path: Path) -> None:
    content = os.urandom(size)
    write(tmp_path / "a", content, step)
    found = following.digest(tmp_path / "a")
    assert found == hashlib.sha256(content).hexdigest()
    assert following.digest(tmp_path / "a") is None  # taken once


def test_a_small_file_is_not_followed(tmp_path: Path) -> None:
    write(tmp_path / "a", bytes(BLOCK - 1))
    assert following.digest(tmp_path / "a") is None


@pytest.mark.parametrize("change", ["append", "overwrite", "replace"])
def test_a_file_that_was_changed_afterwards_is_hashed_again(change: str, tmp_path: Path) -> None:
    path = tmp_path / "a"
    write(path, bytes(3 * BLOCK))
    following._followers[path].thread.join()
    if change == "append":
        with path.open("ab") as stream:
            stream.write(b"more")
    elif change == "overwrite":
        with path.open("r+b") as stream:
            stream.write(b"other")
        os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))  # a clock that is too coarse to tell
    else:
        (tmp_path / "b").write_bytes(os.urandom(3 * BLOCK))
        (tmp_path / "b").replace(path)
    assert Hashing(path).wait().sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_file_that_was_given_up_leaves_nothing_behind(tmp_path: Path) -> None:
    write(tmp_path / "a", bytes(3 * BLOCK))
    follower = following._followers[tmp_path / "a"]
    (tmp_path / "a").unlink()
    follower.thread.join(timeout=60)
    assert not follower.thread.is_alive()
    (tmp_path / "a").write_bytes(b"another")
    assert following.digest(tmp_path / "a") is None
