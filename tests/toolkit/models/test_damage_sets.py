"""Damaged folders, shard indexes and archives around models: one line that says what is wrong, or a result.

The everyday run tries a few dozen damages of each kind, the slow one 500.
"""

from __future__ import annotations

import bz2
import gzip
import io
import json
import shutil
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from computekit import FileProblem, open_model
from computekit.cli import main

from .test_damage import damaged, everyday, flips, thorough

STATE = {f"layers.{i}.weight": torch.arange(1024.0).reshape(32, 32) + i for i in range(4)}
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
WHERE = {name: SHARDS[i % 2] for i, name in enumerate(STATE)}
CONFIG = {"model_type": "bert", "hidden_size": 32, "torch_dtype": "float32"}
FILES = ("config.json", "tokenizer.json", "model.safetensors.index.json", *SHARDS)
KINDS = ("folder", "torch folder", "index")


def make(kind: str, folder: Path) -> Path:
    """A sound model of several files; what a command is given."""
    folder.mkdir()
    (folder / "tokenizer.json").write_text('{"model": {"vocab": {"a": 0}}}')
    index = {"metadata": {"total_size": 16384}, "weight_map": WHERE}
    if kind == "torch folder":
        for shard in SHARDS:
            torch.save({n: STATE[n] for n in STATE if WHERE[n] == shard}, folder / shard.replace("safetensors", "bin"))
        text = json.dumps(index).replace("safetensors", "bin")
        (folder / "pytorch_model.bin.index.json").write_text(text)
    else:
        for shard in SHARDS:
            save_file({name: STATE[name] for name in STATE if WHERE[name] == shard}, folder / shard)
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    if kind == "index":
        return folder / "model.safetensors.index.json"
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=8)
    | st.sampled_from(FILES),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(("weight_map", *WHERE, "x")), inner),
    max_leaves=12,
)
targets = st.sampled_from([".", "..", "missing", *FILES, "/dev/zero", "/proc/self/mem"])
changes = st.lists(
    st.one_of(
        st.tuples(st.just("flip"), st.integers(0, 9), flips),
        st.tuples(st.just("cut"), st.integers(0, 9), st.floats(0, 1)),
        st.tuples(st.just("remove"), st.integers(0, 9), st.none()),
        st.tuples(st.just("link"), st.integers(0, 9), targets),
        st.tuples(st.just("copy"), st.integers(0, 9), st.integers(0, 9)),
        st.tuples(st.just("folder"), st.integers(0, 9), st.none()),
        st.tuples(st.just("json"), st.integers(0, 9), json_values),
        st.tuples(st.just("map"), st.sampled_from(list(WHERE)), st.text(max_size=6) | targets),
    ),
    min_size=1,
    max_size=4,
)


def change(folder: Path, how: str, which: Any, value: Any) -> None:
    """Damage one file of ``folder``."""
    names = sorted(path.name for path in folder.iterdir())
    indexes = [path for path in folder.glob("*.index.json") if path.is_file() and not path.is_symlink()]
    if how == "map":
        for index in indexes:
            try:
                found = json.loads(index.read_text())
                found["weight_map"][which] = value
            except (ValueError, TypeError, KeyError, IndexError):
                continue
            index.write_text(json.dumps(found))
        return
    if not names:
        return
    path = folder / names[which % len(names)]
    content = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    if how == "flip" and content:
        path.write_bytes(damaged(content, value))
    elif how == "cut":
        path.write_bytes(content[: int(len(content) * value)])
    elif how == "link":
        path.symlink_to(value)
    elif how == "copy" and (folder / names[value % len(names)]).is_file():
        shutil.copyfile(folder / names[value % len(names)], path, follow_symlinks=False)
    elif how == "folder":
        path.mkdir()
    elif how == "json":
        path.write_text(json.dumps(value))


def run(*words: object) -> str:
    """Run a command; its exit status must be 0, or 1 with one line that is no internal error."""
    result = CliRunner().invoke(main, [str(word) for word in words])
    if result.exit_code:
        assert result.exit_code == 1, result.output
        line = result.stderr.strip()
        assert line.startswith("Error: ") and "\n" not in line and "internal error" not in line, line
    return result.stderr


@pytest.mark.parametrize("kind", KINDS)
def test_a_sound_set_is_read_and_written(kind: str, tmp_path: Path) -> None:
    model = make(kind, tmp_path / "m")
    assert "Error" not in run("inspect", model)
    target = tmp_path / ("q.safetensors.index.json" if kind == "index" else "q")
    assert "Error" not in run("quantize", "--int8", model, "-o", target)
    assert len(open_model(target).tensors) == 2 * len(STATE)


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_sets(kind: str, tmp_path: Path) -> None:
    _try(kind, tmp_path, everyday)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_damaged_sets_thoroughly(kind: str, tmp_path: Path) -> None:
    _try(kind, tmp_path, thorough)


def _try(kind: str, folder: Path, how: settings) -> None:
    sound = make(kind, folder / "sound")

    @how
    @given(changes)
    def check(damages: list[tuple[str, Any, Any]]) -> None:
        for old in (folder / "m", folder / "q"):
            shutil.rmtree(old, ignore_errors=True)
        shutil.copytree(folder / "sound", folder / "m")
        for damage in damages:
            change(folder / "m", *damage)
        model = folder / "m" if sound.is_dir() else folder / "m" / sound.name
        (folder / "q").mkdir()
        run("inspect", model)
        run("quantize", "--int8", "--allow-noop", model, "-o", folder / "q" / (sound.name if sound.is_file() else "q"))
        assert not [path for path in (folder / "q").rglob("*") if path.name.endswith(".tmp")]

    check()


def _zipped(content: bytes) -> bytes:
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as archive:
        archive.writestr("model.pt", content)
    return held.getvalue()


def _tarred(content: bytes) -> bytes:
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w") as archive:
        about = tarfile.TarInfo("model.pt")
        about.size = len(content)
        archive.addfile(about, io.BytesIO(content))
    return held.getvalue()


WRAPPINGS: dict[str, Callable[[bytes], bytes]] = {
    "zip": _zipped,
    "tar": _tarred,
    "gz": lambda content: gzip.compress(content, mtime=0),
    "bz2": bz2.compress,
    "tar.gz": lambda content: gzip.compress(_tarred(content), mtime=0),
    "zip in zip": lambda content: _zipped(_zipped(content)),
}


@pytest.mark.parametrize("wrapping", WRAPPINGS)
def test_archives_around_a_model_are_refused_by_name(wrapping: str, tmp_path: Path) -> None:
    torch.save(STATE, tmp_path / "whole.pt")
    (tmp_path / "a.pt").write_bytes(WRAPPINGS[wrapping]((tmp_path / "whole.pt").read_bytes()))
    with pytest.raises(FileProblem, match=r"is no model file; it is .*(unpack|archive)"):
        open_model(tmp_path / "a.pt")


@pytest.mark.parametrize("wrapping", ["zip", "zip in zip"])
@pytest.mark.parametrize("missing", [1, 22, 60, 76, 100])
def test_an_archive_without_its_end_is_not_the_one_inside(wrapping: str, missing: int, tmp_path: Path) -> None:
    torch.save(STATE, tmp_path / "whole.pt")
    (tmp_path / "a.pt").write_bytes(WRAPPINGS[wrapping]((tmp_path / "whole.pt").read_bytes())[:-missing])
    with pytest.raises(FileProblem, match="damaged or truncated"):
        open_model(tmp_path / "a.pt")


@pytest.mark.parametrize("wrapping", WRAPPINGS)
def test_damaged_archives(wrapping: str, tmp_path: Path) -> None:
    _try_archives(wrapping, tmp_path, everyday)


@pytest.mark.slow
@pytest.mark.parametrize("wrapping", WRAPPINGS)
def test_damaged_archives_thoroughly(wrapping: str, tmp_path: Path) -> None:
    _try_archives(wrapping, tmp_path, thorough)


def _try_archives(wrapping: str, folder: Path, how: settings) -> None:
    torch.save(STATE, folder / "whole.pt")
    sound = WRAPPINGS[wrapping]((folder / "whole.pt").read_bytes())

    @how
    @given(flips, st.floats(0.1, 1))
    def check(damages: list[tuple[float, int]], kept: float) -> None:
        (folder / "a.pt").write_bytes(damaged(sound[: int(len(sound) * kept)], damages))
        with pytest.raises(FileProblem):
            open_model(folder / "a.pt")

    check()
