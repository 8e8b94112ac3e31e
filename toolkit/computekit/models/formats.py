"""Opening and rewriting model files of every known kind; the kind is decided by content, never by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import host
from ..contracts import ModelFormat
from ..errors import FileProblem
from .base import ModelFile, TensorInfo, Writer

if TYPE_CHECKING:
    import torch

Transform = Callable[[TensorInfo, Callable[[], "torch.Tensor"]], "list[tuple[str, torch.Tensor]] | None"]


def open_model(path: str | Path, *, trust_pickle: bool = False) -> ModelFile:
    """Open a model file of any known kind; only headers are read.

    ``trust_pickle`` accepts pickles that name classes which ``torch.load(weights_only=True)`` refuses. Their weights
    are read all the same without running any of that code.

    Raises:
        FileProblem: there is no such file, it is damaged, or it is no model.
    """
    path = Path(path)
    _check_readable(path)
    for kind in host.current().model_formats:
        if kind.sniff(path):
            return kind.read(path, trust_pickle)
    raise FileProblem(path, "is not a model file of a kind that is known here", _what_it_is(path))


def rewrite(
    source: ModelFile,
    target: str | Path,
    transform: Transform,
    metadata: dict[str, Any] | None = None,
    writer: Writer | None = None,
) -> None:
    """Write ``source`` to ``target`` as a file of the same kind, with each weight as ``transform`` wants it.

    ``transform(info, load)`` returns None to copy the tensor unchanged, byte for byte, or the named tensors that take
    its place (none at all: it is dropped). It is called once for tensors that are tied, and what it returns is tied.
    ``metadata`` replaces the source's; None keeps it. A ``writer`` of another kind converts.

    Memory follows the largest tensor. ``target`` is written directly: hand in the temporary file of `files.atomic`.
    """
    if writer is None:
        writer = _writer(source, Path(target))
    made: dict[Any, tuple[str, list[str] | None]] = {}
    with writer:
        for name, info in source.tensors.items():
            tied = info.storage is not None and info.storage in made
            if tied:
                first, outputs = made[info.storage]
            else:
                first, outputs = name, _write_one(source, writer, info, transform)
                made[info.storage] = (first, outputs)
            if tied and outputs is None and writer.source is source:
                writer.keep(name)
            elif tied:
                for output in [first] if outputs is None else outputs:
                    writer.tie(_renamed(output, first, name), output, like=name)
        writer.finish(source.metadata if metadata is None else metadata)


def _write_one(source: ModelFile, writer: Writer, info: TensorInfo, transform: Transform) -> list[str] | None:
    """Transform and write one tensor; the names that it became, or None if it stayed as it was."""
    results = transform(info, lambda: source.load(info.name))
    if results is None and writer.source is source:
        writer.keep(info.name)
        return None
    for name, tensor in [(info.name, source.load(info.name))] if results is None else results:
        writer.add(name, tensor, like=info.name)
    return None if results is None else [name for name, _ in results]


def _renamed(output: str, first: str, name: str) -> str:
    """What ``output``, made from the tensor ``first``, is called for its twin ``name``."""
    if output.startswith(first):
        return name + output.removeprefix(first)
    module = first.rpartition(".")[0]
    other = name.rpartition(".")[0]
    rest = output.removeprefix(f"{module}.") if module else output
    return f"{other}.{rest}" if other else rest


def _writer(source: ModelFile, target: Path) -> Writer:
    """A writer of the source's own kind."""
    for kind in host.current().model_formats:
        if kind.name == source.format and kind.write is not None:
            return kind.write(source, target)
    raise FileProblem(source.path, f"is {source.format}, which can be read but not written", "convert it first")


def _check_readable(path: Path) -> None:
    if not path.exists():
        raise FileProblem(path, "no such model file", "check the name and the folder")
    if path.is_file():
        if path.stat().st_size == 0:
            raise FileProblem(path, "is empty", "get the file again")
        with path.open("rb"):  # an unreadable file fails here, with the system's own reason
            pass


def _what_it_is(path: Path) -> str:
    """A guess for the error message, from the first bytes."""
    if path.is_dir():
        return "it is a folder without weights that are known here"
    with path.open("rb") as stream:
        start = stream.read(512)
    for magic, what in _MAGICS:
        if start.startswith(magic):
            return what
    if b"\0" not in start:
        first = start.decode("utf-8", "replace").splitlines()[0][:40]
        return f"it is a text file that begins with {first!r}"
    return "known: torch .pt files, safetensors"


_MAGICS = (
    (b"PK\x03\x04", "it is a zip archive, but not one that torch.save writes"),
    (b"PK\x05\x06", "it is an empty zip archive"),
    (b"\x1f\x8b", "it is gzip-compressed: unpack it first"),
    (b"\x80", "it is a pickle, but not one that torch.save writes"),
    (b"\x93NUMPY", "it is a numpy array"),
    (b"\x89HDF", "it is an HDF5 file (Keras): convert it to safetensors first"),
)


def _read_torch(path: Path, trust_pickle: bool, legacy: bool) -> ModelFile:
    import zipfile

    from . import checkpoint, torch_files
    from .pickles import Malformed

    try:
        root, extents = (torch_files.open_legacy if legacy else torch_files.open_zip)(path)
        unsafe = checkpoint.unsafe_globals(root)
        if unsafe and not trust_pickle:
            shown = ", ".join(unsafe[:6]) + (f" and {len(unsafe) - 6} more" if len(unsafe) > 6 else "")
            raise FileProblem(
                path,
                f"is a pickle that wants to import {shown}",
                "if you trust it, say --trust-pickle; nothing was run",
            )
        name = "torch legacy" if legacy else "torch"
        return torch_files.TorchFile(path, name, root=root, extents=extents)
    except (Malformed, zipfile.BadZipFile, EOFError, NotImplementedError) as error:
        raise FileProblem(path, f"is a damaged torch file ({error})", "get the file again") from error


def _sniff_zip(path: Path) -> bool:
    from . import torch_files

    return path.is_file() and torch_files.is_torch_zip(path)


def _sniff_legacy(path: Path) -> bool:
    from . import torch_files

    return path.is_file() and torch_files.is_legacy(path)


def _write_torch(like: ModelFile | None, path: Path) -> Writer:
    from .torch_files import TorchFile
    from .torch_writer import TorchWriter

    return TorchWriter(like if isinstance(like, TorchFile) else None, path)


def _sniff_safetensors(path: Path) -> bool:
    from . import safetensors_files

    return path.is_file() and safetensors_files.is_safetensors(path)


def _sniff_index(path: Path) -> bool:
    from . import safetensors_files

    return path.is_file() and safetensors_files.is_index(path)


def _read_safetensors(path: Path, trust_pickle: bool) -> ModelFile:
    from . import safetensors_files

    return safetensors_files.read(path)


def _read_index(path: Path, trust_pickle: bool) -> ModelFile:
    from . import safetensors_files

    return safetensors_files.read_index(path)


def _write_safetensors(like: ModelFile | None, path: Path) -> Writer:
    from .safetensors_files import SafetensorsFile, SafetensorsWriter

    return SafetensorsWriter(like if isinstance(like, SafetensorsFile) else None, path)


BUILTIN: tuple[ModelFormat, ...] = (
    ModelFormat("torch", "zip archive of torch.save: state_dicts and checkpoints", _sniff_zip,
                lambda path, trust_pickle: _read_torch(path, trust_pickle, legacy=False), _write_torch),
    ModelFormat("torch legacy", "plain pickles of torch < 1.6; written as torch zip archives", _sniff_legacy,
                lambda path, trust_pickle: _read_torch(path, trust_pickle, legacy=True), _write_torch),
    ModelFormat("safetensors", "a single safetensors file", _sniff_safetensors, _read_safetensors, _write_safetensors),
    ModelFormat("sharded safetensors", "an index and its shards; written as one file", _sniff_index, _read_index,
                _write_safetensors),
)  # fmt: skip
