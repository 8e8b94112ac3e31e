"""What ternary does to weights, as a step, as a scheme and in a table."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from computekit_ternary import ternarize

from computekit import load_module
from computekit.models.compressed import NonFinite
from computekit.testing import Outcome

Run = Callable[..., Outcome]


def test_known_values() -> None:
    weight = ternarize(torch.tensor([[0.1, -2.0, 4.0, 0.0]]))
    assert weight.values.tolist() == [[0, -1, 1, 0]]
    assert weight.dequantize().tolist() == [[0, -3, 3, 0]]
    assert ternarize(torch.zeros(2, 3)).dequantize().tolist() == [[0, 0, 0]] * 2


def test_nan_is_refused() -> None:
    with pytest.raises(NonFinite, match="'w'"):
        ternarize(torch.tensor([[float("nan")]]), name="w")


@pytest.mark.parametrize("words", [["ternary"], ["quantize", "--scheme", "ternary"]])
def test_the_file_is_smaller_and_still_a_model(words: list[str], run_computekit: Run, small_model: Path) -> None:
    outcome = run_computekit(*words, str(small_model), "-o", "small.pt")
    assert outcome.exit_code == 0, outcome.stderr
    assert Path("small.pt").stat().st_size < 0.6 * small_model.stat().st_size
    module, _, _ = load_module("small.pt")
    assert module(torch.zeros(2, 64)).shape == (2, 10)


def test_the_table_has_its_column(run_computekit: Run, small_model: Path) -> None:
    assert run_computekit("ternary", str(small_model), "-o", "small.pt").exit_code == 0
    table = run_computekit("table", "small.pt.record.json").stdout
    assert "zeros" in table
    assert "%" in table
