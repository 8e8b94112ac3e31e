"""Modules that compute on fixed grids: close to the original, in integers from layer to layer."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from computekit import load_into

from .networks import NETS, conversions, make, save


@pytest.mark.parametrize("name", NETS)
def test_a_network_gives_what_it_gave(name: str, tmp_path: Path) -> None:
    module, x = make(name)
    untraced = save(module, x, tmp_path / "m.pt")
    assert untraced == []
    loaded = load_into(NETS[name][0](), tmp_path / "m.pt")
    with torch.no_grad():
        exact, ours = module(x), loaded(x)
        assert ours.shape == exact.shape
        error = (ours - exact).square().mean().sqrt() / exact.std()
        assert error < 0.06
        assert not torch.equal(ours, exact)
    assert conversions(loaded) == NETS[name][2]


@pytest.mark.parametrize("name", NETS)
def test_results_do_not_depend_on_the_batch(name: str, tmp_path: Path) -> None:
    module, x = make(name)
    save(module, x, tmp_path / "m.pt")
    loaded = load_into(NETS[name][0](), tmp_path / "m.pt")
    with torch.no_grad():
        together = loaded(torch.cat([x, 50 * x]))
        assert torch.equal(together[:3], loaded(x[:3]))
        assert torch.equal(together[5:6], loaded(x[5:6]))
