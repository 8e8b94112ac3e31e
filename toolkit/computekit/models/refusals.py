"""What a file that is no model may be instead, so that the one line that refuses it helps."""

from __future__ import annotations

import re
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from ..contracts import ModelFormat
from ..errors import FileProblem
from ..files import check_regular
from .zips import open_zip

_MAGICS = (
    (b"PK\x05\x06", "it is an empty zip archive"),
    (b"\x1f\x8b", "it is gzip-compressed: unpack it first (gunzip)"),
    (b"BZh", "it is bzip2-compressed: unpack it first (bunzip2)"),
    (b"\xfd7zXZ", "it is xz-compressed: unpack it first (unxz)"),
    (b"\x28\xb5\x2f\xfd", "it is zstd-compressed: unpack it first (unzstd)"),
    (b"7z\xbc\xaf", "it is a 7z archive: unpack it first"),
    (b"Rar!", "it is a rar archive: unpack it first"),
    (b"\x93NUMPY", "it is a numpy array"),
    (b"\x89HDF", "it is an HDF5 file (Keras): convert it to safetensors first"),
    (b"\x04\x22\x4d\x18", "it is lz4-compressed (joblib writes such files): unpack it first"),
    (b"\xba\x16\x4f\x2f", "it is a fastText model, which only fastText reads"),
    (b"lmgg", "it is a ggml file from before GGUF: convert it with the program it is for"),
    (b"version https://git-lfs", "it is a git-lfs pointer: fetch the file itself with git lfs pull"),
    (b"<!DOCTYPE", "it is a web page: the download went wrong"),
    (b"<html", "it is a web page: the download went wrong"),
)
_DISTRIBUTED = (
    "a checkpoint of torch.distributed: "
    "join its parts with python -m torch.distributed.checkpoint.format_utils dcp_to_torch FOLDER FILE"
)
_JOBLIB = "it is a file of joblib (scikit-learn), no network: load it where it was made"
_SHARD = re.compile(r"-\d+-of-\d+\.")
_SMALL_BYTES = 1 << 24
_MODEL_SUFFIXES = (".pt", ".pth", ".bin", ".ckpt", ".safetensors", ".gguf", ".onnx", ".pt2", ".tar")


def check_readable(path: Path) -> None:
    """Refuse what is missing, empty, unreadable or no regular file (FileProblem)."""
    check_regular(path, "model file")
    if not path.exists():
        raise FileProblem(path, "no such model file", "check the name and the folder")
    if path.is_dir():
        return
    if path.stat().st_size == 0:
        raise FileProblem(path, "is empty", "get the file again")
    with path.open("rb"):  # an unreadable file fails here, with the system's own reason
        pass


def what_it_is(path: Path, kinds: Sequence[ModelFormat]) -> str:
    """A hint for the refusal, from the first bytes and, for archives, the names of the members."""
    if path.is_dir():
        return _folder(path)
    with path.open("rb") as stream:
        start = stream.read(512)
    if path.suffix == ".distcp":
        return f"it is a part of one: {_DISTRIBUTED}"
    if start.startswith(b"PK\x03\x04"):
        return _zip(path)
    for magic, what in _MAGICS:
        if start.startswith(magic):
            return what
    if start.startswith(b"\x80"):
        return _pickle(path)
    if start[:1] == b"x" and start[1:2] in (b"\x01", b"\x5e", b"\x9c", b"\xda"):
        return "it is zlib-compressed, as joblib (scikit-learn) writes files: load it where it was made"
    if start[4:8] == b"TFL3":
        return "it is a TensorFlow Lite model: give the model that it was made from"
    if start.startswith(b"\x08\x01\x12") and path.suffix == ".pb":
        return "it is a TensorFlow SavedModel: convert it to ONNX or safetensors first"
    if b"Spec\0" in start[:64]:  # a version, then the length and name of a class such as WhisperSpec
        return "it is a model of CTranslate2: quantize what it was converted from"
    if start[257:262] == b"ustar":
        return _tar(path)
    if b"\0" not in start and (text := start.decode("utf-8", "replace").strip()):
        return f"it is a text file that begins with {text.splitlines()[0][:40]!r}"
    return f"known: {', '.join(kind.name for kind in kinds)}"


def _folder(path: Path) -> str:
    """What a folder holds, if it is none of a model's weights."""
    files = sorted(file.name for file in path.iterdir() if file.is_file())
    models = [name for name in files if name.endswith(_MODEL_SUFFIXES)]
    if any(name.endswith(".distcp") for name in files):
        return f"it is {_DISTRIBUTED}"
    if models and all(map(_SHARD.search, models)):
        return f"it holds shards ({models[0]} ...) without their index, a .index.json: download the folder again"
    if models:
        return f"it is a folder that holds {', '.join(models[:3])}: give one of these files"
    if "saved_model.pb" in files:
        return "it is a TensorFlow SavedModel: convert it to ONNX or safetensors first"
    if {"data.pkl", "version"} <= set(files):
        return "it is an unpacked torch archive: zip -0 -r model.pt of the folder makes it one again"
    inside = sorted({file.parent.name for file in path.glob("*/*") if file.name.endswith(_MODEL_SUFFIXES)})
    if inside:
        return f"it is a folder of folders, of which {', '.join(inside[:6])} hold weights: give one of these"
    return "it is a folder without weights that are known here"


def _zip(path: Path) -> str:
    try:
        with open_zip(path) as archive:
            names = archive.namelist()
    except (OSError, zipfile.BadZipFile, ValueError, NotImplementedError):
        return "it begins like a zip archive (torch.save writes those), but it is damaged or truncated"
    if names and all(name.endswith(".npy") for name in names):
        return "it is a numpy .npz archive"
    if any(name.endswith("/.data/extern_modules") for name in names):
        return "it is an archive of torch.package, which holds code: import it there, and torch.save its state_dict"
    if "model.weights.h5" in names:
        return "it is a Keras archive: export it to safetensors first"
    return _archive("zip", names)


def _tar(path: Path) -> str:
    try:
        with tarfile.open(path, "r:") as archive:
            names = [member.name for _, member in zip(range(100), archive, strict=False)]
    except (OSError, tarfile.TarError, ValueError):
        return "it begins like a tar archive, but it is damaged"
    if {"storages", "tensors", "pickle"} <= set(names):
        return "it was written by torch < 0.1.10: load and save it with torch 1.x"
    return _archive("tar", names)


def _archive(kind: str, names: list[str]) -> str:
    models = [name for name in names if name.lower().endswith(_MODEL_SUFFIXES)]
    if models:
        return f"it is a {kind} archive that contains {models[0]!r}: unpack it and give that file"
    return f"it is a {kind} archive, but not one that torch writes"


def _pickle(path: Path) -> str:
    """What the pickle would import tells what it is; it is read as inert data, and only if it is small."""
    from . import pickles

    names: list[str] = []
    if path.stat().st_size < _SMALL_BYTES:
        try:
            with path.open("rb") as stream:
                found = pickles.parse(stream)
            names = sorted({str(value) for value in pickles.walk(found) if isinstance(value, pickles.Global)})
        except pickles.Malformed:
            with path.open("rb") as stream:
                joblib = b"joblib.numpy_pickle" in stream.read(_SMALL_BYTES)  # it puts arrays between the instructions
            return _JOBLIB if joblib else "it begins like a pickle, but it is damaged"
    if any(name.startswith("joblib.") for name in names):
        return _JOBLIB
    wants = f" that would import {', '.join(names[:6])}" if names else ""
    return f"it is a pickle{wants}, not a file of torch.save: load it where it was made, and torch.save its state_dict"
