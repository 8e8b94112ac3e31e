"""Text as windows of tokens: its bytes, or the tokens of a model's own tokenizer.

The text is cut by position, 80% train, 10% validation, 10% test, and always at the same bytes: what is held out does
not depend on the tokenizer.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .datasets import Data, DataProblem, Split
from .errors import MissingExtra

if TYPE_CHECKING:
    import torch
    from torch import Tensor

BYTES_WINDOW = 128
TOKENS_WINDOW = 256
"""Tokens per sample where nothing else is asked for, of bytes and of a tokenizer."""

UNSCORED = -100
"""Target of a token that does not count, as `torch.nn.functional.cross_entropy` ignores it."""

_BYTES = 256
_TRAIN, _VALIDATION = 0.8, 0.1
_TOKENIZERS = (
    "tokenizer.json",
    "tokenizer.model",
    "vocab.txt",
    "vocab.json",
    "spiece.model",
    "sentencepiece.bpe.model",
)


@dataclass(frozen=True)
class Window:
    """``length`` tokens per sample; a new sample begins every ``stride`` tokens (None: where the last one ends).

    With a smaller stride windows overlap, and only the last ``stride`` tokens of each are scored: each has at least
    ``length - stride`` tokens before it.
    """

    length: int
    stride: int | None = None


def from_bytes(name: str, text: bytes, source: str, window: Window | None = None) -> Data:
    """Byte-level language-modelling data: any encoding works, and the vocabulary is 256."""
    import numpy
    import torch

    window = window or Window(BYTES_WINDOW)
    tokens = [torch.from_numpy(numpy.frombuffer(part, dtype=numpy.uint8).astype(numpy.int64)) for part in _parts(text)]
    return _data(name, tokens, window, _BYTES, source, text, "bytes")


def for_model(data: Data, model: Path | None, window: Window | None = None) -> Data:
    """``data``, a text in bytes, in the tokens that the model file or folder ``model`` reads, cut as ``window`` says.

    A Hugging Face folder brings a tokenizer. What it puts around a text (``[CLS]``, ``<s>``) is around each window, not
    scored. Other models read bytes.

    Raises:
        DataProblem: the folder brings no tokenizer; the window is longer than the model's context.
        MissingExtra: transformers is not installed.
    """
    assert data.text is not None
    found = None if model is None else _folder(model)
    if found is None:
        return data if window is None else from_bytes(data.name, data.text, data.source, window)
    folder, config = found
    if not any((folder / name).is_file() for name in _TOKENIZERS):
        problem = f"is text, and {folder} brings no tokenizer to read it"
        raise DataProblem(data.name, problem, "put the model's tokenizer.json there")
    tokenizer = _tokenizer(folder)
    context = config.get("max_position_embeddings", TOKENS_WINDOW)
    if window is None:
        window = Window(min(TOKENS_WINDOW, context))
    elif window.length > context:
        raise DataProblem(data.name, f"windows of {window.length} tokens do not fit the model's context of {context}")
    tokens = [_encode(tokenizer, part.decode("utf-8", "replace")) for part in _parts(data.text)]
    around = _around(tokenizer)
    size = max(len(tokenizer), config.get("vocab_size", 0))
    return _data(data.name, tokens, window, size, data.source, data.text, "tokens of the model's tokenizer", around)


def windows(tokens: Tensor, window: Window, around: tuple[Tensor, Tensor] | None = None) -> Split:
    """Samples of ``tokens`` (N,) in order; ``around`` are tokens that stand before and after each.

    The targets are the tokens that follow, `UNSCORED` where none belongs or where an overlapping window scores it.
    """
    import torch

    before, after = around if around is not None else (tokens[:0], tokens[:0])
    length = window.length - len(before) - len(after)
    stride = window.stride or length
    if len(tokens) <= length:
        empty = tokens.new_empty(0, window.length)
        return Split(empty, empty)
    pieces = tokens.unfold(0, length + 1, stride)
    inputs, targets = pieces[:, :-1], pieces[:, 1:]
    if stride < length:
        targets = targets.clone()
        targets[:, :-stride] = UNSCORED
    if len(before) or len(after):
        rows = len(pieces)
        inputs = torch.cat([before.expand(rows, -1), inputs, after.expand(rows, -1)], 1)
        unscored = [part.expand(rows, -1).clone().fill_(UNSCORED) for part in (before, after)]
        targets = torch.cat([unscored[0], targets, unscored[1]], 1)
    return Split(inputs, targets)


def _data(
    name: str,
    tokens: Sequence[Tensor],
    window: Window,
    vocabulary: int,
    source: str,
    text: bytes,
    unit: str,
    around: tuple[Tensor, Tensor] | None = None,
) -> Data:
    room = window.length - sum(len(part) for part in around or ())
    if room < 1 or (window.stride or 1) > room:
        raise DataProblem(name, f"windows of {window.length} leave no room for {window.stride or 1} new {unit}")
    count, needed = sum(len(part) for part in tokens), 30 * window.length
    if count < needed or min(len(part) for part in tokens) <= room:
        raise DataProblem(name, f"has {count} {unit}", f"a text needs at least {needed} to be split")
    train, validation, test = (windows(part, window, around) for part in tokens)
    cut = f"windows of {window.length} {unit}" + (f", {window.stride} new in each" if window.stride else "")
    return Data(name, "language-modeling", train, validation, test, vocabulary, source, text, cut)


def _folder(model: Path) -> tuple[Path, dict[str, Any]] | None:
    """The Hugging Face folder that ``model`` is or lies in, and its config.json; None where it reads bytes."""
    from .models.huggingface import read_config

    folder = model if model.is_dir() else model.absolute().parent
    config = read_config(folder / "config.json")
    return None if "model_type" not in config or config.get("vocab_size") == _BYTES else (folder, config)


def _parts(text: bytes) -> tuple[bytes, bytes, bytes]:
    first, second = int(len(text) * _TRAIN), int(len(text) * (_TRAIN + _VALIDATION))
    return text[:first], text[first:second], text[second:]


def _tokenizer(folder: Path) -> Any:
    """The tokenizer of a Hugging Face folder; code from the folder is never run."""
    logging.disable(logging.WARNING)  # what the package's optional dependencies log on import is no concern of users
    try:
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except ImportError:
        raise MissingExtra("transformers", "hf", "reading text as the tokens of a Hugging Face model") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise DataProblem(
            folder.name, f"its tokenizer cannot be read ({first})", "download the folder again"
        ) from error
    finally:
        logging.disable(logging.NOTSET)


def _encode(tokenizer: Any, text: str, special: bool = False) -> torch.Tensor:
    import torch

    return torch.tensor(tokenizer(text, add_special_tokens=special, verbose=False).input_ids, dtype=torch.int64)


def _around(tokenizer: Any) -> tuple[Tensor, Tensor]:
    """The special tokens that the tokenizer puts before and after a text."""
    word = _encode(tokenizer, "a")
    whole = _encode(tokenizer, "a", special=True)
    start = next(i for i in range(len(whole)) if whole[i : i + len(word)].equal(word))
    return whole[:start], whole[start + len(word) :]
