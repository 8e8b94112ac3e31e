"""What is no model file is refused in one line that names the file and what it is."""

from __future__ import annotations

import struct
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from computekit import FileProblem, ModelFile, ModelFormat, TensorInfo, Writer, hookimpl, host, open_model, rewrite
from computekit.models import conversion


def test_missing_folder_empty_and_text(tmp_path: Path) -> None:
    (tmp_path / "empty.pt").touch()
    (tmp_path / "text.pt").write_text("hello\nworld\n")
    for name, message in {
        "missing.pt": "no such model file",
        "empty.pt": "is empty",
        "text.pt": "text file that begins with 'hello'",
        ".": "it is a folder",
    }.items():
        with pytest.raises(FileProblem, match=message):
            open_model(tmp_path / name)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\6\0\0\0\x0c\0WhisperSpec\0" + b"\0" * 99, "model of CTranslate2"),
        ({"p/.data/extern_modules": b"torch", "p/m/model": b"\x80\2N."}, "archive of torch.package"),
        (b"\x93NUMPY\1\0", "numpy array"),
        (b"\x04\x22\x4d\x18@@", "lz4-compressed"),
        (b"x\x9c\xcb\x48", "zlib-compressed"),
        (b"\xba\x16\x4f\x2f\x0c\0", "fastText"),
        (b"lmgg\x0a\0", "ggml file from before GGUF"),
        (b"\x1c\0\0\0TFL3", "TensorFlow Lite"),
        (b"\x80\4\x8c\x13joblib.numpy_pickle\x94\x8c\x11NumpyArrayWrapper\x93\xff\xff", "file of joblib"),
    ],
)
def test_files_of_other_tools_are_named(content: bytes | dict[str, bytes], message: str, tmp_path: Path) -> None:
    if isinstance(content, dict):
        with zipfile.ZipFile(tmp_path / "a.pt", "w") as archive:
            for name, data in content.items():
                archive.writestr(name, data)
    else:
        (tmp_path / "a.pt").write_bytes(content)
    with pytest.raises(FileProblem, match=message):
        open_model(tmp_path / "a.pt")


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (["__0_0.distcp", ".metadata"], "checkpoint of torch.distributed: .*dcp_to_torch"),
        (["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"], "without their index"),
        (["saved_model.pb"], "TensorFlow SavedModel"),
        (["data.pkl", "version", "data/0"], "unpacked torch archive"),
        (["unet/a.safetensors", "vae/a.safetensors"], "of which unet, vae hold weights"),
        (["a.pt"], "holds a.pt: give one of these files"),
        (["README"], "without weights that are known"),
    ],
)
def test_folders_that_are_no_model_are_named(files: list[str], message: str, tmp_path: Path) -> None:
    for name in files:
        (tmp_path / "m" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "m" / name).write_bytes(b"x")
    with pytest.raises(FileProblem, match=message):
        open_model(tmp_path / "m")


def test_a_name_that_is_half_a_surrogate_pair(tmp_path: Path) -> None:
    header = b'{"\\ud800":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
    (tmp_path / "a.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(4))
    torch.save({"\ud800": torch.ones(1)}, tmp_path / "a.pt")
    for name in ("a.safetensors", "a.pt"):
        with pytest.raises(FileProblem, match="which is no text"):
            open_model(tmp_path / name)


@pytest.mark.parametrize("target", ["a.safetensors", "a.pt"])
def test_one_number_of_any_stride_is_written(target: str, tmp_path: Path) -> None:
    """numpy gives arrays of one number the stride 0, which torch keeps and calls contiguous."""
    kind = conversion.kind_of(Path(target))
    assert kind.write is not None
    with kind.write(None, tmp_path / target) as writer:
        writer.add("a", torch.ones(1).as_strided((1, 1), (0, 0)), "a")
        writer.finish({})
    assert open_model(tmp_path / target).load("a").tolist() == [[1.0]]


def test_a_zip_that_torch_did_not_write(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.pt", "w") as archive:
        archive.writestr("readme.txt", "hello")
    with pytest.raises(FileProblem, match="not one that torch writes"):
        open_model(tmp_path / "a.pt")


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
def test_truncation_anywhere_is_noticed(legacy: bool, tmp_path: Path) -> None:
    torch.save(nn.Linear(20, 20).state_dict(), tmp_path / "a.pt", _use_new_zipfile_serialization=not legacy)
    whole = (tmp_path / "a.pt").read_bytes()
    for percent in range(100):
        (tmp_path / "cut.pt").write_bytes(whole[: len(whole) * percent // 100])
        with pytest.raises(FileProblem):
            open_model(tmp_path / "cut.pt")


def test_a_pickled_module_lists_what_it_wants(tmp_path: Path) -> None:
    torch.save(nn.Linear(2, 2), tmp_path / "a.pt")
    with pytest.raises(FileProblem, match=r"torch\.nn\.modules\.linear\.Linear.*nothing was run"):
        open_model(tmp_path / "a.pt")


class Text(ModelFile):
    """A third party's kind: one line of numbers per tensor."""

    @property
    def tensors(self) -> dict[str, TensorInfo]:
        lines = (line.split(":") for line in self.path.read_text().splitlines()[1:])
        sizes = {name: len(values.split()) for name, values in lines}
        return {name: TensorInfo(name, (n,), torch.float64, 8 * n, name) for name, n in sizes.items()}

    def load(self, name: str) -> torch.Tensor:
        lines = dict(line.split(":") for line in self.path.read_text().splitlines()[1:])
        return torch.tensor([float(value) for value in lines[name].split()], dtype=torch.float64)


class TextWriter(Writer):
    source = None

    def __init__(self, path: Path) -> None:
        self.stream = path.open("w")
        self.stream.write("text model\n")

    def add(self, name: str, tensor: torch.Tensor, like: str) -> None:
        self.stream.write(f"{name}:{' '.join(map(str, tensor.tolist()))}\n")

    def keep(self, name: str) -> None:
        raise AssertionError("only a writer with a source is asked to keep")

    def tie(self, name: str, other: str, like: str) -> None:
        raise AssertionError("nothing is tied here")

    def finish(self, metadata: dict[str, Any]) -> None:
        assert metadata == {}

    def close(self) -> None:
        self.stream.close()


@pytest.fixture
def with_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host with a plugin that adds the kind above, and another kind that fails on everything."""

    class Plugin:
        @hookimpl
        def computekit_model_formats(self) -> list[ModelFormat]:
            def sniff(path: Path) -> bool:
                return path.is_file() and path.read_bytes()[:10] == b"text model"

            def broken(path: Path) -> bool:
                raise RuntimeError("not today")

            def read(path: Path, _trust_pickle: bool) -> ModelFile:
                return Text(path, "text")

            text = ModelFormat("text", "numbers", sniff, read, lambda like, path: TextWriter(path), suffixes=(".num",))
            return [text, ModelFormat("broken", "fails", broken, read, priority=1)]

    found = host.Host.of(("text", Plugin()))
    monkeypatch.setattr(host, "current", lambda: found)


@pytest.mark.usefixtures("with_text")
def test_a_plugin_adds_a_kind_of_file(tmp_path: Path) -> None:
    (tmp_path / "a.num").write_text("text model\nx:1.0 2.0\ny:3.0\n")
    source = open_model(tmp_path / "a.num")
    rewrite(source, tmp_path / "b.num", lambda info, load: [(info.name, load() * 2)])
    assert (tmp_path / "b.num").read_text() == "text model\nx:2.0 4.0\ny:6.0\n"
    conversion.convert(source, tmp_path / "c", conversion.kind_of(Path("c.safetensors")), conversion.Conversion())
    assert load_file(tmp_path / "c")["x"].tolist() == [1.0, 2.0]
    back = conversion.kind_of(Path("d.num"))
    conversion.convert(open_model(tmp_path / "c"), tmp_path / "d.num", back, conversion.Conversion())
    assert (tmp_path / "d.num").read_text() == "text model\nx:1.0 2.0\ny:3.0\n"


def test_the_default_name_of_a_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.save({"a": torch.ones(1)}, tmp_path / "m.pt")
    folder = tmp_path / "Model-3.1-8B"
    folder.mkdir()
    save_file({"a": torch.ones(1)}, folder / "model-00001-of-00001.safetensors")
    index = folder / "model.safetensors.index.json"
    index.write_text('{"weight_map": {"a": "model-00001-of-00001.safetensors"}}')
    assert open_model(tmp_path / "m.pt").beside("int8") == tmp_path / "m-int8.pt"
    assert open_model(folder).beside("int8") == tmp_path / "Model-3.1-8B-int8"
    monkeypatch.chdir(folder)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes((folder / "model-00001-of-00001.safetensors").read_bytes())
    assert open_model(".").beside("int8") == tmp_path / "Model-3.1-8B-int8"
    assert open_model(index).beside("int8") == folder / "model-int8.safetensors.index.json"
    (folder / "m.json").write_text(index.read_text())
    assert open_model(folder / "m.json").beside("int8") == folder / "m-int8.safetensors.index.json"
