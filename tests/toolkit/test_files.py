"""Files are the old ones or the new ones: errors, Ctrl-C, a full disk, kill -9."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from computekit import files
from computekit.errors import FileProblem


def leftovers(folder: Path) -> list[str]:
    return [p.name for p in folder.iterdir() if p.name.endswith((".tmp", ".old"))]


def test_success_replaces_the_target(tmp_path: Path) -> None:
    target = tmp_path / "model.pt"
    target.write_text("old")
    with files.atomic(target) as temporary:
        temporary.write_text("new")
        assert target.read_text() == "old"
    assert target.read_text() == "new"
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("error", [ValueError("x"), KeyboardInterrupt(), SystemExit(3)])
def test_an_error_leaves_the_old_file(tmp_path: Path, error: BaseException) -> None:
    target = tmp_path / "model.pt"
    target.write_text("old")
    with pytest.raises(type(error)), files.atomic(target) as temporary:
        temporary.write_text("half")
        raise error
    assert target.read_text() == "old"
    assert leftovers(tmp_path) == []


def test_a_folder_is_swapped_whole(tmp_path: Path) -> None:
    target = tmp_path / "model"
    target.mkdir()
    (target / "config.json").write_text("old")
    (target / "model.safetensors").write_text("old")
    with files.atomic(target) as temporary:
        temporary.mkdir()
        (temporary / "config.json").write_text("new")
    assert [p.name for p in target.iterdir()] == ["config.json"]
    assert (target / "config.json").read_text() == "new"
    assert leftovers(tmp_path) == []


def test_missing_folder_and_folder_as_target(tmp_path: Path) -> None:
    with pytest.raises(FileProblem, match="does not exist"):
        files.check_writable(tmp_path / "no" / "model.pt")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "x").touch()
    with pytest.raises(FileProblem, match="is a folder"):
        files.check_writable(tmp_path / "folder")
    (tmp_path / "file").touch()
    with pytest.raises(FileProblem, match="is not a folder"):
        files.check_writable(tmp_path / "file" / "model.pt")


def test_devices_and_pipes_are_never_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "pipe")
    for special in (tmp_path / "pipe", tmp_path / "link", Path("/dev/null"), Path("/dev/stdout"), Path("/dev/new.pt")):
        with pytest.raises(FileProblem, match="is a device or a pipe, not a file"):
            files.check_writable(special)


def test_a_folder_that_takes_no_files_is_found_before_the_work() -> None:
    with pytest.raises(FileProblem, match=r"^/proc/model\.pt: cannot be written"):
        files.check_writable(Path("/proc/model.pt"))


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    if os.geteuid() != 0 or not shutil.which("mount"):
        pytest.skip("mounting a small file system needs root")
    command = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("this machine does not allow mounting")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_leaves_the_old_file(tiny_disk: Path) -> None:
    target = tiny_disk / "model.pt"
    target.write_text("old")
    with pytest.raises(FileProblem, match="disk is full"), files.atomic(target) as temporary:
        temporary.write_bytes(b"x" * 1_000_000)
    assert target.read_text() == "old"
    assert leftovers(tiny_disk) == []


def test_a_full_disk_at_the_last_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "model.pt"
    target.write_text("old")

    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(FileProblem, match="disk is full"), files.atomic(target) as temporary:
        temporary.write_text("new")
    assert target.read_text() == "old"


@pytest.mark.slow
def test_kill_9_at_any_moment(tmp_path: Path) -> None:
    """Twenty writers are killed at different moments: the target is always one of the two whole contents."""
    target = tmp_path / "model.pt"
    target.write_bytes(b"0" * 3_000_000)
    script = (
        "import sys; from computekit import files\n"
        "print('go', flush=True)\n"
        "for i in range(10**6):\n"
        "    with files.atomic(sys.argv[1]) as t: t.write_bytes(str(i % 10).encode() * 3_000_000)\n"
    )
    for trial in range(20):
        writer = subprocess.Popen([sys.executable, "-c", script, str(target)], stdout=subprocess.PIPE)
        assert writer.stdout is not None
        writer.stdout.readline()
        time.sleep(0.003 * trial)
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        content = target.read_bytes()
        assert len(content) == 3_000_000
        assert len(set(content)) == 1


def write_pair(target: Path, content: str, owned: set[str], names: tuple[str, ...] = ("model.onnx",)) -> None:
    with files.atomic(target, owned) as temporary:
        temporary.write_text(content)
        for name in names:
            temporary.with_name(name).write_text(content)


def contents(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


def test_companions_take_the_place_of_what_belongs_to_the_old_file_and_of_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "model.pt"
    write_pair(target, "1", set(), ("model.xml", "model.bin"))
    (tmp_path / "model.onnx").write_text("somebody's")
    with pytest.raises(FileProblem, match=r"model\.onnx: would be replaced, and is no part of model\.pt; move it away"):
        write_pair(target, "2", {"model.xml", "model.bin"})
    old = {"model.pt": "1", "model.xml": "1", "model.bin": "1", "model.onnx": "somebody's"}
    assert contents(tmp_path) == old
    (tmp_path / "model.onnx").unlink()
    write_pair(target, "2", {"model.xml", "model.bin"})
    assert contents(tmp_path) == {"model.pt": "2", "model.onnx": "2"}
    write_pair(target, "3", {"model.onnx"}, ())
    assert contents(tmp_path) == {"model.pt": "3"}


@pytest.mark.parametrize("failing", ["model.bin", "model.pt"])
def test_companions_are_put_back_if_a_later_move_fails(
    failing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_pair(tmp_path / "model.pt", "1", set(), ("model.bin",))
    before = Path.replace

    def replace(self: Path, target: Path) -> Path:
        if self.read_text() == "2" and self.name == failing:
            raise OSError(errno.ENOSPC, "No space left on device", str(self))
        return before(self, target)

    monkeypatch.setattr(Path, "replace", replace)
    with pytest.raises(FileProblem, match="disk is full"):
        write_pair(tmp_path / "model.pt", "2", {"model.bin"}, ("model.a", "model.bin"))
    assert contents(tmp_path) == {"model.pt": "1", "model.bin": "1"}


def test_a_kill_between_the_moves_leaves_the_old_companions(tmp_path: Path) -> None:
    target = tmp_path / "model.pt"
    write_pair(target, "1", set())
    script = (
        "import os, sys; from pathlib import Path; from computekit import files\n"
        "files._sync_folder = lambda folder: os._exit(9)\n"
        "with files.atomic(sys.argv[1], {'model.onnx'}) as t:\n"
        "    t.write_text('2'); t.with_name('model.onnx').write_text('2')\n"
    )
    assert subprocess.run([sys.executable, "-c", script, str(target)]).returncode == 9
    assert target.read_text() == "1"
    assert (tmp_path / "model.onnx").read_text() == "2"
    [before] = files.companions_before(target, "model.onnx")
    assert before.read_text() == "1"


def test_hash_of_a_folder_depends_on_names_and_contents(tmp_path: Path) -> None:
    for name, text in [("a", "1"), ("b", "2")]:
        (tmp_path / name).write_text(text)
    before = files.sha256(tmp_path)
    (tmp_path / "b").rename(tmp_path / "c")
    assert files.sha256(tmp_path) != before
    assert files.size_bytes(tmp_path) == 2


def test_hidden_files_and_caches_are_no_part_of_a_folder(tmp_path: Path) -> None:
    """Snakemake leaves .snakemake_timestamp in a folder that a rule makes; its record must still describe it."""
    (tmp_path / "config.json").write_text("{}")
    before = files.sha256(tmp_path)
    for hidden in (".snakemake_timestamp", ".git/HEAD", "__pycache__/a.pyc"):
        (tmp_path / hidden).parent.mkdir(exist_ok=True)
        (tmp_path / hidden).write_text("x")
    assert files.sha256(tmp_path) == before
    assert files.size_bytes(tmp_path) == 2


def test_a_model_that_the_disk_cannot_take(tiny_disk: Path) -> None:
    """torch.save reports a failed write as a RuntimeError; it must come out as a full disk."""
    from torch import nn

    from computekit.models import ArchRef, save_module

    target = tiny_disk / "model.pt"
    target.write_text("old")
    with pytest.raises(FileProblem, match="disk is full"), files.atomic(target) as temporary:
        save_module(nn.Linear(300, 300), temporary, ArchRef("linear"))
    assert target.read_text() == "old"
    assert leftovers(tiny_disk) == []


def test_an_index_counts_with_the_shards_that_it_names(tmp_path: Path) -> None:
    for name in ("a.safetensors", "b.safetensors", "other.safetensors"):
        (tmp_path / name).write_bytes(b"12345")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text('{"weight_map": {"x": "b.safetensors", "y": "a.safetensors", "z": "b.safetensors"}}')
    assert files.members(index) == [index, tmp_path / "a.safetensors", tmp_path / "b.safetensors"]
    assert files.size_bytes(index) == index.stat().st_size + 10
    before = files.sha256(index)
    (tmp_path / "other.safetensors").write_bytes(b"changed")
    assert files.sha256(index) == before
    (tmp_path / "a.safetensors").write_bytes(b"1234x")
    assert files.sha256(index) != before


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"weight_map": 1}', '{"weight_map": {"a": 1}}', '{"weight_map": {"a": "no"}}']
)
def test_a_damaged_index_counts_alone(text: str, tmp_path: Path) -> None:
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(text)
    assert files.members(index) == [index]


@pytest.mark.parametrize(
    "names", [["config.json"], ["config.json", "index.js"], ["config.json", "model.safetensors", ".git"]]
)
def test_a_folder_that_is_no_model_is_never_replaced(names: list[str], tmp_path: Path) -> None:
    target = tmp_path / "project"
    target.mkdir()
    for name in names:
        (target / name).write_text("precious")
    with pytest.raises(FileProblem, match="holds more than a model"), files.atomic(target) as temporary:
        temporary.mkdir()
    assert sorted(file.name for file in target.iterdir()) == sorted(names)


def test_the_companions_of_an_index_are_replaced_with_its_shards(tmp_path: Path) -> None:
    index = tmp_path / "m.safetensors.index.json"
    for version, owned in (("1", set()), ("2", {"m.onnx"}), ("3", {"m.onnx"})):
        with files.atomic(index, owned) as temporary:
            temporary.with_name(f"m-{version}.safetensors").write_text(version)
            temporary.write_text(json.dumps({"weight_map": {"a": f"m-{version}.safetensors"}}))
            if version != "3":
                temporary.with_name("m.onnx").write_text(version)
        left = {"m.onnx"} if version != "3" else set()
        names = {path.name for path in tmp_path.iterdir()}
        assert names == {index.name, f"m-{version}.safetensors", *left}
    assert (tmp_path / "m-3.safetensors").read_text() == "3"
