"""Hugging Face folders: config.json, weights (safetensors or torch, one file or shards), tokenizer and other files.

A rewritten folder has the same other files, byte for byte, and its weights as safetensors in the same shards. What
computekit keeps with the model is in the metadata of the first shard; a ``quantization_config`` in it goes into
config.json, where transformers and vLLM look for it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .. import files
from ..errors import ComputekitError, FileProblem, MissingExtra
from . import raw, safetensors_files, safetensors_shards, torch_files, torch_legacy
from .base import ModelFile, TensorInfo, Writer
from .safetensors_files import SafetensorsFile
from .safetensors_shards import Shards

ARCHITECTURE = "transformers"
"""Name of the architecture that builds any transformers model from its config."""

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_TORCH = "pytorch_model.bin"
_TORCH_INDEX = "pytorch_model.bin.index.json"
_CONFIGS = ("config.json", "adapter_config.json")
_WEIGHTS = (_SINGLE, _INDEX, _TORCH, _TORCH_INDEX)
_OTHER_WEIGHTS = (
    ".safetensors",
    ".bin",
    ".h5",
    ".msgpack",
    ".pt",
    ".pth",
    ".onnx",
    ".gguf",
    ".ot",
    ".tflite",
    ".index.json",
)


@dataclass
class Folder(ModelFile):
    """A model folder; ``files`` are the open weight files, each tensor belongs to one of them."""

    files: list[ModelFile] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._owner = {name: file for file in self.files for name in file.tensors}
        self._infos: dict[str, TensorInfo] = {}
        for number, file in enumerate(self.files):  # storages are told apart by their file
            self._infos |= {n: replace(info, storage=(number, info.storage)) for n, info in file.tensors.items()}
            self.metadata.update(file.metadata)

    @property
    def tensors(self) -> dict[str, TensorInfo]:
        return self._infos

    def load(self, name: str) -> torch.Tensor:
        return self._owner[name].load(name)

    def pieces(self, name: str, count: int) -> Iterator[torch.Tensor]:
        return self._owner[name].pieces(name, count)

    @property
    def arch(self) -> dict[str, Any] | None:
        described = {"name": ARCHITECTURE, "args": {"config": self.config}} if "model_type" in self.config else None
        return super().arch or described

    def beside(self, tag: str) -> Path:
        folder = self.path.resolve() if self.path.name in ("", "..") else self.path
        return folder.with_name(f"{folder.name}-{tag}")  # a dot in a folder's name begins no suffix

    def shard(self, name: str) -> str:
        """The weight file that a rewritten folder keeps tensor ``name`` in."""
        file = self._owner[name]
        if isinstance(file, SafetensorsFile):
            return file.entry(name).path.name
        name = file.path.name
        if name.startswith("pytorch_model"):  # of transformers, which calls safetensors otherwise; PEFT does not
            name = name.removeprefix("pytorch_")
        return Path(name).with_suffix(".safetensors").name


def sniff(path: Path) -> bool:
    """Whether ``path`` is a folder with weights in the layout of Hugging Face's libraries."""
    return path.is_dir() and _weights_of(path) is not None


def _weights_of(folder: Path) -> Path | None:
    """The weights, or the index of their shards: what transformers looks for first, else the only other file.

    Other names (diffusers, PEFT) count only beside a configuration: a folder that merely holds a model is none.
    """
    usual = [folder / name for name in _WEIGHTS if (folder / name).is_file()]
    if usual or not any((folder / name).is_file() for name in _CONFIGS):
        return usual[0] if usual else None
    for pattern in ("*.safetensors.index.json", "*.safetensors", "*_model.bin"):
        found = sorted(folder.glob(pattern))
        if len(found) == 1:
            return found[0]
    return None


def read(path: Path, trust_pickle: bool) -> Folder:
    """A model folder. Where it has both, safetensors are read, as transformers does.

    Raises:
        FileProblem: a weight file or config.json is damaged or missing.
    """
    found = _weights_of(path)
    assert found is not None
    files: list[ModelFile]
    if found.suffix == ".safetensors":
        files = [safetensors_files.read(found)]
    elif found.name.endswith(".safetensors.index.json"):
        files = [safetensors_shards.read(found)]
    else:
        names = _torch_shards(found) if found.suffix == ".json" else [found.name]
        files = [_read_torch(path / name, trust_pickle) for name in names]
    return Folder(path, "folder", files=files, config=read_config(path / "config.json"))


def read_config(path: Path) -> dict[str, Any]:
    """A config.json, or nothing where there is none."""
    if not path.is_file():
        return {}
    try:
        config = files.read_json(path)
    except ValueError as error:
        raise FileProblem(path, f"is not JSON ({error})", "download the folder again") from error
    if not isinstance(config, dict):
        raise FileProblem(path, "is JSON, but no object", "download the folder again")
    return config


def _torch_shards(index: Path) -> list[str]:
    names = sorted(set(safetensors_shards.weight_map(index).values()))
    for name in names:
        if not index.with_name(name).is_file():
            raise FileProblem(index, f"names the shard {name!r}, which is missing", "download the folder again")
    return names


def _read_torch(path: Path, trust_pickle: bool) -> ModelFile:
    if torch_files.sniff(path):
        return torch_files.read(path, trust_pickle)
    if torch_legacy.sniff(path):
        return torch_legacy.read(path, trust_pickle)
    raise FileProblem(path, "is no torch file", "download the folder again")


def write(like: ModelFile | None, path: Path) -> Writer:
    """A writer of a folder with the other files and the shards of ``like``."""
    return FolderWriter(like if isinstance(like, Folder) else None, path)


class FolderWriter(Writer):
    """Writes a model folder, one shard after the other in the order of the source's tensors.

    ``config`` is for a folder without a source, and what it says wins over the source's config.json.
    """

    source: Folder | None

    def __init__(self, source: Folder | None, path: Path, config: dict[str, Any] | None = None) -> None:
        self.source, self.path = source, path
        self._config = {**(source.config if source else {}), **(config or {})}
        inner = source.files[0] if source else None
        self._shards = Shards(inner if isinstance(inner, SafetensorsFile) else None, path)
        self._kept: dict[Hashable, str] = {}
        path.mkdir()
        if source is not None:
            _copy_other_files(source.path, path)

    def add(self, name: str, tensor: torch.Tensor, like: str) -> None:
        self._shards.add(self._file(like), name, tensor, like)

    def keep(self, name: str) -> None:
        assert self.source is not None
        first = self._kept.setdefault(self.source.tensors[name].storage, name)
        if first != name:
            self.tie(name, first, name)
        elif isinstance(self.source.files[0], SafetensorsFile):
            self._shards.keep(self._file(name), name)
        else:
            self.add(name, self.source.load(name), name)

    def tie(self, name: str, other: str, like: str) -> None:
        self._shards.tie(name, other, like)

    def finish(self, metadata: dict[str, Any]) -> None:
        self._shards.finish(metadata)
        inner = self.source.files[0].path.name if self.source else _SINGLE
        indexed = inner.endswith(".safetensors.index.json")  # even of one shard, which then is not called like a file
        if indexed or len(self._shards.writers) > 1:
            self._shards.write_index(self.path / (inner if indexed else _INDEX))
        config = {**self._config}
        if "quantization_config" in metadata:  # None: the weights are no longer quantized
            config["quantization_config"] = metadata["quantization_config"]
            if metadata["quantization_config"] is None:
                del config["quantization_config"]
        if config != (self.source.config if self.source else {}):
            (self.path / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")

    def close(self) -> None:
        self._shards.close()

    def _file(self, like: str) -> str:
        """The name of the file that holds what becomes of the source's tensor ``like``."""
        return self.source.shard(like) if self.source else _SINGLE


def _copy_other_files(source: Path, target: Path) -> None:
    """Copy what is not weights: tokenizer, configurations, model card; other forms of the weights would be stale."""
    for file in sorted(source.rglob("*")):
        inner = file.relative_to(source)
        hidden = any(part.startswith(".") for part in inner.parts)
        if file.is_file() and not hidden and not file.name.endswith(_OTHER_WEIGHTS):
            (target / inner).parent.mkdir(parents=True, exist_ok=True)
            with (target / inner).open("wb") as stream:
                raw.copy(file, 0, file.stat().st_size, stream)  # its size and no more: links may lead anywhere


def build(config: dict[str, Any]) -> nn.Module:
    """The transformers model that a config.json describes, with fresh weights. Code from the folder is never run.

    Raises:
        MissingExtra: transformers is not installed.
        ComputekitError: it does not know such a model.
    """
    plain = {key: value for key, value in config.items() if key not in ("quantization_config", "auto_map")}
    names = config.get("architectures") or ["AutoModel"]
    logging.disable(logging.WARNING)  # what the package's optional dependencies log on import is no concern of users
    try:
        import transformers

        found: Any = getattr(transformers, str(names[0]), None)
        if not (isinstance(found, type) and issubclass(found, transformers.PreTrainedModel)):
            found = transformers.AutoModel
        described: Any = transformers.AutoConfig.for_model(**plain)
        model: nn.Module = found.from_config(described) if hasattr(found, "from_config") else found(described)
    except ImportError:
        raise MissingExtra("transformers", "hf", "running a Hugging Face model") from None
    except (ValueError, TypeError, KeyError) as error:
        raise ComputekitError(f"transformers cannot build {names[0]} from this config.json: {error}") from error
    finally:
        logging.disable(logging.NOTSET)
    return model.eval()


def example(batch: int, config: dict[str, Any]) -> tuple[torch.Tensor, ...]:
    """Arguments of one forward call: pixels (batch, channels, size, size) or token ids (batch, up to 128)."""
    if "image_size" in config:
        size = config["image_size"]
        height, width = size if isinstance(size, list) else (size, size)
        return (torch.zeros(batch, config.get("num_channels", 3), height, width),)
    length = min(128, config.get("max_position_embeddings", 128))
    return (torch.arange(batch * length).reshape(batch, length) % config.get("vocab_size", 1000),)
