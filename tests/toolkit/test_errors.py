"""Errors build their one line from data."""

from __future__ import annotations

from pathlib import Path

import pytest

from computekit import errors


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (errors.FileProblem("a/b.pt", "is empty"), "a/b.pt: is empty"),
        (errors.FileProblem(Path("b.pt"), "is empty", "download it again"), "b.pt: is empty; download it again"),
        (errors.UnknownName("data set", "digts", ["digits", "text"]), "unknown data set 'digts'; did you mean digits?"),
        (errors.UnknownName("data set", "zzz", ["b", "a"]), "unknown data set 'zzz'; known: a, b"),
        (errors.UnknownName("data set", "zzz", []), "unknown data set 'zzz'; none is registered"),
        (
            errors.MissingExtra("onnx", "onnx", "reading .onnx"),
            "reading .onnx needs onnx, which is not installed; pip install 'computekit[onnx]'",
        ),
        (
            errors.PluginNotLoaded("x", "computekit-x", "1.0", "ImportError: y"),
            "command 'x' is not available: plugin computekit-x 1.0 is not loaded (ImportError: y); "
            "'computekit plugins' lists what is",
        ),
    ],
)
def test_one_line(error: errors.ComputekitError, line: str) -> None:
    assert str(error) == line
    assert error.exit_code == 1


def test_nearest_gives_at_most_two() -> None:
    assert len(errors.nearest("quantise", ["quantize", "quantizer", "quantizes", "train"])) == 2
    assert errors.nearest("zzz", ["train"]) == []
