"""Inference-adjusted model size against the published example."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from computekit.cli import main
from computekit.records import load
from computekit_cost.sizing import Life, cheapest, loss, optimal_tokens, tokens_for


def test_published_example() -> None:
    """7B instead of 13B for 2e12 inference tokens saves 1.7e22 FLOP, 17 % (Sardana et al. 2024, figure 1)."""
    large, best = cheapest(13e9, 2e12)
    assert best.parameters == pytest.approx(7e9, rel=0.01)
    assert large.flops - best.flops == pytest.approx(1.7e22, rel=0.01)
    assert 1 - best.flops / large.flops == pytest.approx(0.17, abs=0.005)


@given(st.floats(1e8, 1e12), st.floats(1e9, 1e14))
def test_the_cheapest_model_has_the_same_loss_and_no_neighbour_is_cheaper(parameters: float, used: float) -> None:
    large, best = cheapest(parameters, used)
    wanted = loss(parameters, large.training_tokens)
    assert loss(best.parameters, best.training_tokens) == pytest.approx(wanted, rel=1e-9)
    assert best.flops <= large.flops * (1 + 1e-9)
    for factor in (0.8, 0.95, 1.05, 1.25):
        size = best.parameters * factor
        assert Life(size, tokens_for(size, wanted), used).flops >= best.flops * (1 - 1e-9)


def test_without_use_the_training_optimum_is_best() -> None:
    large, best = cheapest(13e9, 1.0)
    assert best.parameters == pytest.approx(13e9, rel=1e-3)
    assert large.training_tokens == pytest.approx(optimal_tokens(13e9))


def test_command(tmp_path: Path) -> None:
    words = ["cost", "size", "--parameters", "13e9", "--inference-tokens", "2e12", "-o", str(tmp_path / "size.json")]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, result.output
    rows = load(tmp_path / "size.json").rows
    assert rows[1].quantities["saving"].value == pytest.approx(0.174, abs=0.001)
