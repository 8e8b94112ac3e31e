import hashlib
import os
from pathlib import Path

import pytest
import torch

from computekit import following, open_model, rewrite
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
    with following.wanted(tmp_path / "a"):
        write(tmp_path / "a", content, step)
        assert following.digest(tmp_path / "a") == hashlib.sha256(content).hexdigest()
    assert following.digest(tmp_path / "a") is None


def test_small_files_and_those_that_nobody_asks_for_are_not_followed(tmp_path: Path) -> None:
    with following.wanted(tmp_path / "a"):
        write(tmp_path / "a", bytes(BLOCK - 1))
        write(tmp_path / "b", bytes(3 * BLOCK))
        assert following.digest(tmp_path / "a") is None
        assert following.digest(tmp_path / "b") is None


@pytest.mark.parametrize("change", ["append", "overwrite", "replace"])
def test_a_file_that_was_changed_afterwards_is_hashed_again(change: str, tmp_path: Path) -> None:
    path = tmp_path / "a"
    with following.wanted(path):
        write(path, bytes(3 * BLOCK))
        assert following.digest(path)
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


def test_another_file_in_its_place_is_not_taken_for_it(tmp_path: Path) -> None:
    with following.wanted(tmp_path / "a"):
        write(tmp_path / "a", bytes(3 * BLOCK))
        (tmp_path / "a").unlink()
        (tmp_path / "a").write_bytes(b"another")
        assert following.digest(tmp_path / "a") is None


@pytest.mark.parametrize("changed", ["", "ab", "abc"])
def test_a_torch_archive_is_written_from_its_beginning_to_its_end(changed: str, tmp_path: Path) -> None:
    """Added and copied members, optimizer state, metadata: the follower hashed what is there in the end."""
    state = {name: torch.randn(100, 300 + index) for index, name in enumerate("abc")}
    torch.save({"model": state, "optimizer": {"state": torch.randn(50_000)}}, tmp_path / "a.pt")
    with following.wanted(tmp_path / "b.pt"):
        rewrite(
            open_model(tmp_path / "a.pt"),
            tmp_path / "b.pt",
            lambda info, load: [(info.name, load().half())] if info.name in changed else None,
            {"kept": "with the model"},
        )
        content = (tmp_path / "b.pt").read_bytes()
        assert following.digest(tmp_path / "b.pt") == hashlib.sha256(content).hexdigest()
