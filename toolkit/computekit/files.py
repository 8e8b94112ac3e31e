"""Files that are either the old ones or the new ones, never half of each."""

from __future__ import annotations

import errno
import glob
import hashlib
import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .errors import FileProblem

_CHUNK = 1 << 22
_MAX_JSON_BYTES = 100_000_000
_BEFORE = ".before"


@contextmanager
def atomic(target: str | Path, companions: Collection[str] | None = None) -> Iterator[Path]:
    """Yield a temporary path beside ``target``; on success fsync it and rename it over ``target``.

    On any error, Ctrl-C included, the temporary file (or folder) is removed and ``target`` stays as it was. A killed
    process may leave a hidden ``.NAME.XXXX.tmp`` file behind, never a damaged target.

    An index (``*.index.json``) has shards, which the block writes beside the temporary path, under names that no other
    version's shards have. They take their places first; the index, whose renaming decides, comes last.

    With ``companions`` (perhaps of none) whatever lies beside the temporary path of a file when the block ends is moved
    as well. They are the names of what belongs to the old file: it makes way, and nothing else does. A process that is
    killed between the first move and the last leaves the old ones in `companions_before`.

    Raises:
        FileProblem: the folder is missing or not writable, the disk is full, or a companion would take the place of a
            file that does not belong to ``target``.
    """
    target = Path(target)
    check_writable(target)
    hidden = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    apart = is_index(target) or companions is not None
    temporary = hidden / target.name if apart else hidden
    try:
        if apart:
            hidden.mkdir()
        yield temporary
        sync(temporary)
        if companions is not None:
            _replace_with_companions(temporary, target, companions)
        elif is_index(target):
            _replace_index(temporary, target)
        elif temporary.is_dir() and target.is_dir():
            _replace_folder(temporary, target)
        else:
            temporary.replace(target)
        _sync_folder(target.parent)
    except OSError as error:
        _remove(hidden)
        if error.filename is not None and not Path(error.filename).is_relative_to(hidden):
            raise  # another file's trouble, such as an input that cannot be read
        raise _cannot_write(target, error) from error
    except BaseException:
        _remove(hidden)
        raise


def check_writable(target: Path) -> None:
    """Raise FileProblem if ``target`` could not be written; meant to be called before the long work starts."""
    folder = target.parent
    special = target.exists() and not target.is_file() and not target.is_dir()
    if special or folder.absolute() == Path("/dev"):  # renaming over it would take it from the whole system
        raise FileProblem(target, "is a device or a pipe, not a file", "give the name of a file")
    if not folder.exists():
        raise FileProblem(target, f"the folder {folder} does not exist", "create it first")
    if not folder.is_dir():
        raise FileProblem(target, f"{folder} is not a folder")
    if target.is_dir() and any(target.iterdir()) and not _is_model_folder(target):
        raise FileProblem(target, "is a folder that holds more than a model", "give another name")
    try:
        with tempfile.TemporaryFile(dir=folder):  # asking for permission is not enough: read-only disks, /proc, quotas
            pass
    except OSError as error:
        raise _cannot_write(target, error) from error


def _is_model_folder(folder: Path) -> bool:
    """Whether ``folder`` may be replaced whole: it has a config.json and weights, and nobody's repository is in it."""
    weights = (".safetensors", ".bin", ".pt")
    has_weights = any(file.name.endswith(weights) for file in folder.iterdir())
    return has_weights and (folder / "config.json").is_file() and not (folder / ".git").exists()


def _cannot_write(target: Path, error: OSError) -> FileProblem:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return FileProblem(target, "the disk is full", "free some space; nothing was changed")
    return FileProblem(target, f"cannot be written ({error.strerror})", "choose another place")


def write_text(target: str | Path, text: str) -> None:
    """Write ``text`` to ``target`` atomically, as UTF-8."""
    with atomic(target) as temporary:
        temporary.write_text(text, encoding="utf-8")


def check_regular(path: Path, what: str) -> None:
    """Refuse a link to nothing, and what can be read only once or never ends (FileProblem); folders may pass."""
    if path.is_symlink() and not path.exists():
        raise FileProblem(path, f"is a link to {path.readlink()}, which is not there", "mend the link")
    if path.exists() and not path.is_file() and not path.is_dir():
        raise FileProblem(path, f"is a device or a pipe, not a {what}", "save it to a file first")


def sha256(path: str | Path) -> str:
    """Hex SHA-256 of a file, or of a folder's `members` with their relative paths."""
    path = Path(path)
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(_CHUNK))  # one for all: fresh memory costs as much time as reading does
    for file in members(path):
        if path.is_dir():
            digest.update(f"{file.relative_to(path).as_posix()}\0{file.stat().st_size}\0".encode())
        left = file.stat().st_size  # what has no size, such as files in /proc, may have no end
        with file.open("rb", buffering=0) as stream:
            while left > 0 and (got := stream.readinto(buffer[: min(_CHUNK, left)])):
                digest.update(buffer[:got])
                left -= got
    return digest.hexdigest()


def read_json(path: Path) -> Any:
    """What a JSON file of at most 100 MB holds; ValueError if it holds something else, or more."""
    with path.open("rb") as stream:
        content = stream.read(_MAX_JSON_BYTES + 1)
    if len(content) > _MAX_JSON_BYTES:
        raise ValueError("it is too long")
    try:
        return json.loads(content)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def size_bytes(path: str | Path) -> int:
    """Bytes of a file, or of a folder's `members`."""
    return sum(file.stat().st_size for file in members(Path(path)))


def check_spares(target: Path, sources: Iterable[Path]) -> None:
    """Refuse to replace a file that goes in, or part of a folder or sharded file that does (FileProblem).

    Also refuses a target inside a folder that goes in, which would be part of it the next time.
    """
    replaced = {file.resolve() for file in [target, *members(target)]} if target.exists() else set()
    for source in sources:
        if source.is_dir() and target.resolve().is_relative_to(source.resolve() / ""):
            raise FileProblem(target, f"lies inside the input {source}", "give another --output")
        if source.resolve() == target.resolve():
            raise FileProblem(target, "is the input itself", "give another --output")
        read = {file.resolve() for file in [source, *members(source)]}
        if target.resolve() in read:
            raise FileProblem(target, f"is part of the input {source}", "give another --output")
        if not replaced.isdisjoint(read):
            raise FileProblem(target, f"has files in common with the input {source}", "give another --output")


def is_index(path: Path) -> bool:
    """Whether ``path`` is called like the index of a model in several files."""
    return path.name.endswith(".index.json")


def members(path: Path) -> list[Path]:
    """A file itself, an index with the shards that it names, or the files that make up a folder, sorted.

    Hidden files and Python's caches do not count: other tools leave them there (Snakemake a time stamp, git its own).
    """
    if not path.is_dir():
        return [path, *_shards(path)] if is_index(path) else [path]
    inside = [file.relative_to(path) for file in path.rglob("*") if file.is_file()]
    return [path / p for p in sorted(inside) if not any(n.startswith(".") or n == "__pycache__" for n in p.parts)]


def _shards(index: Path) -> list[Path]:
    """The files beside ``index`` that hold what it lists; none if it is no index of a sharded model."""
    try:
        names = set(read_json(index)["weight_map"].values())
        return [path for name in sorted(names) if (path := index.parent / Path(name).name).is_file()]
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return []  # whoever opens it says what is wrong with it


def sync(path: Path) -> None:
    """Put a file, an index with its shards, or a folder onto the disk; returns when they are there."""
    for file in [p for p in path.rglob("*") if p.is_file()] if path.is_dir() else members(path):
        with file.open("rb") as stream:
            os.fsync(stream.fileno())


def _sync_folder(folder: Path) -> None:
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def check_companions(target: Path, names: Iterable[str], owned: Collection[str]) -> None:
    """Raise FileProblem if a file ``names`` beside ``target`` exists that is not among those ``owned`` by it."""
    for name in names:
        path = target.with_name(name)
        if os.path.lexists(path) and name not in owned:
            hint = f"move it away, or give another --output than {target.name}"
            raise FileProblem(path, f"would be replaced, and is no part of {target.name}", hint)


def companions_before(target: Path, name: str) -> list[Path]:
    """Where the companion ``name`` of ``target`` lies if a process was killed while it replaced both."""
    return sorted(target.parent.glob(f".{glob.escape(target.name)}.*.tmp/{_BEFORE}/{glob.escape(name)}"))


def _replace_with_companions(new: Path, old: Path, owned: Collection[str]) -> None:
    """Move a file and all that lies beside it to where ``old`` is; the file itself, whose renaming decides, comes last.

    The old companions, and the shards of an index, are kept until then, and put back if anything fails.
    """
    beside = [path for path in sorted(new.parent.iterdir()) if path != new]
    names = {path.name for path in beside}
    shards, before = ({p.name for p in _shards(index)} if is_index(index) else set() for index in (new, old))
    check_companions(old, sorted(names - shards), owned)
    owned = {*owned, *before}
    kept = new.parent / _BEFORE
    kept.mkdir()
    for name in owned:
        if old.with_name(name).is_file():
            _second_name(old.with_name(name), kept / name)
    try:
        for companion in beside:
            sync(companion)
            companion.replace(old.with_name(companion.name))
        _sync_folder(old.parent)
        new.replace(old)
    except BaseException:
        for name in names:
            if (kept / name).exists():
                (kept / name).replace(old.with_name(name))
            elif not (new.parent / name).exists():
                old.with_name(name).unlink()
        raise
    for name in set(owned) - names:
        old.with_name(name).unlink(missing_ok=True)
    shutil.rmtree(new.parent)


def _second_name(path: Path, other: Path) -> None:
    """Let a file have ``other`` as a name too, or a copy where the file system has no links."""
    try:
        os.link(path, other)
    except OSError:
        shutil.copyfile(path, other)


def _replace_index(new: Path, old: Path) -> None:
    """Move an index and its shards to where ``old`` is, and take the shards away that only ``old`` named."""
    before = _shards(old)
    for shard in (shards := _shards(new)):
        shard.replace(old.with_name(shard.name))
    _sync_folder(old.parent)
    new.replace(old)
    new.parent.rmdir()
    for shard in before:
        if shard.name not in {kept.name for kept in shards}:
            shard.unlink(missing_ok=True)


def _replace_folder(new: Path, old: Path) -> None:
    """Swap a folder in: in one step where the system can, else the old one is moved aside and put back on failure."""
    if _exchange(new, old):
        shutil.rmtree(new)
        return
    aside = old.with_name(f".{old.name}.{secrets.token_hex(4)}.old")
    old.rename(aside)
    try:
        new.rename(old)
    except BaseException:
        aside.rename(old)
        raise
    shutil.rmtree(aside)


def _exchange(first: Path, second: Path) -> bool:
    """Exchange two names atomically (Linux's renameat2 with RENAME_EXCHANGE); False where there is no such call."""
    import ctypes

    renameat2 = getattr(ctypes.CDLL(None), "renameat2", None) if os.name == "posix" else None
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return renameat2 is not None and renameat2(here, os.fsencode(first), here, os.fsencode(second), exchange) == 0


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
