"""Opening and rewriting model files of every known kind; the kind is decided by content, never by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import host
from ..contracts import ModelFormat
from ..errors import FileProblem
from . import refusals
from .base import ModelFile, TensorInfo, Writer

if TYPE_CHECKING:
    import torch

_MAX_NAMED = 6
Transform = Callable[[TensorInfo, Callable[[], "torch.Tensor"]], "list[tuple[str, torch.Tensor]] | None"]


def open_model(path: str | Path, *, trust_pickle: bool = False) -> ModelFile:
    """Open a model file of any known kind; only headers are read.

    ``trust_pickle`` accepts pickles that name classes which ``torch.load(weights_only=True)`` refuses. Their weights
    are read all the same without running any of that code.

    Raises:
        FileProblem: there is no such file, it is damaged, or it is no model.
    """
    path = Path(path)
    refusals.check_readable(path)
    kinds = host.current().model_formats
    for kind in kinds:
        if _sniffs(kind, path):
            source = kind.read(path, trust_pickle)
            if not source.tensors:
                raise FileProblem(path, "holds no named weights", _instead(source))
            _check_names(source)
            host.current().takes_part(kind)
            return source
    raise FileProblem(path, "is no model file", refusals.what_it_is(path, kinds))


def _check_names(source: ModelFile) -> None:
    """Raise FileProblem if a tensor's name is no text that could be printed or written (half of a surrogate pair)."""
    for name in source.tensors:
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise FileProblem(
                source.path, f"has a tensor called {name!a}, which is no text", "it is damaged"
            ) from error


def _instead(source: ModelFile) -> str:
    """What a file without weights holds, as far as it tells."""
    from . import layout
    from .torch_files import TorchFile

    foreign = [name for name in source.unsafe if not name.startswith("numpy")] if isinstance(source, TorchFile) else []
    if foreign:
        return f"it is a pickle that wants to import {', '.join(foreign[:_MAX_NAMED])}; nothing was run"
    return layout.describe(source.root, source.imports) if isinstance(source, TorchFile) else "is it the right file?"


def _sniffs(kind: ModelFormat, path: Path) -> bool:
    """Whether the file is of this kind; a plugin's sniff that fails on it keeps no other kind from being asked."""
    try:
        return kind.sniff(path)
    except Exception:
        return False


def rewrite(
    source: ModelFile,
    target: str | Path,
    transform: Transform,
    metadata: dict[str, Any] | None = None,
    writer: Writer | None = None,
    names: Mapping[str, str] | None = None,
) -> None:
    """Write ``source`` to ``target`` as a file of the same kind, with each weight as ``transform`` wants it.

    ``transform(info, load)`` returns None to copy the tensor unchanged, byte for byte, or the named tensors that take
    its place (none at all: it is dropped). It is called once for tensors that are tied, and what it returns is tied.
    ``metadata`` replaces the source's; None keeps it. A ``writer`` of another kind converts. ``names`` says what the
    tensors are called afterwards where ``transform`` renames them, so that their twins are renamed alike.

    Memory follows the largest tensor; torch works in one thread meanwhile. ``target`` is written directly: hand in the
    temporary file of `files.atomic`.
    """
    if writer is None:
        writer = _write_of(source)(source, Path(target))
    called = names or {}
    made: dict[Any, tuple[str, list[str] | None]] = {}
    with writer, _one_thread():
        for name, info in source.tensors.items():
            if info.storage is None or info.storage not in made:
                made[info.storage] = (name, _write_one(source, writer, info, transform))
                continue
            first, outputs = made[info.storage]
            if outputs is None and writer.source is source:
                writer.keep(name)
                continue
            for output in [first] if outputs is None else outputs:
                writer.tie(_renamed(output, called.get(first, first), called.get(name, name)), output, like=name)
        writer.finish(source.metadata if metadata is None else metadata)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Keep torch to one thread: the pieces that a rewrite works on stay in the cache and take microseconds, less than
    it takes to wake the other threads, which would burn every core while they wait."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


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


def check_rewritable(source: ModelFile, target: Path | None = None) -> None:
    """Raise FileProblem if `rewrite` cannot write files of the source's kind (TorchScript, GGUF, ...).

    Also if ``target`` is named like a file of another kind, which whoever goes by the name could not read.
    """
    _write_of(source)
    if target is None:
        return
    named = _named_kind(target)
    akin = source.format.split()  # old torch pickles are written as torch archives, shards may be joined
    if named and named not in (source.format, *akin, _named_kind(source.path)):
        raise FileProblem(
            target,
            f"is named like a {named} file, and what is written is of the kind of {source.path}, {source.format}",
            "give another --output, and use computekit convert to change the kind",
        )


def check_saved_name(target: Path) -> None:
    """Raise FileProblem if ``target``, which `save_module` is to write, is named like a file of another kind."""
    named = _named_kind(target)
    if named not in ("", "torch"):
        raise FileProblem(
            target,
            f"is named like a {named} file, and what is written is a torch archive",
            f"call it {target.name.partition('.')[0]}.pt, and use computekit convert to change the kind",
        )


def _named_kind(path: Path) -> str:
    """The kind of model file that a name's ending stands for; empty if it stands for none."""
    known = {suffix: kind.name for kind in host.current().model_formats for suffix in kind.suffixes if suffix}
    known |= {f".{kind}": kind for kind in ("gguf", "pt2")}
    endings = [suffix for suffix in known if path.name.endswith(suffix)]
    return known[max(endings, key=len)] if endings else ""


def _write_of(source: ModelFile) -> Callable[[ModelFile, Path], Writer]:
    """What makes a writer of the source's own kind."""
    for kind in host.current().model_formats:
        if kind.name == source.format and kind.write is not None:
            return kind.write
    raise FileProblem(
        source.path, f"is {source.format}, which can be read but not written", "computekit convert it first"
    )
