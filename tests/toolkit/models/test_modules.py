"""Modules from files: the architecture is remembered, prefixes are seen through, what does not fit is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from computekit import ArchRef, FileProblem, load_module, save_module

ARCH = ArchRef("torch.nn:Linear", {"in_features": 3, "out_features": 2})


def weights() -> dict[str, torch.Tensor]:
    return {"weight": torch.arange(6.0).reshape(2, 3), "bias": torch.ones(2)}


def test_a_saved_module_comes_back(tmp_path: Path) -> None:
    save_module(nn.Linear(3, 2), tmp_path / "a.pt", ARCH, data="digits")
    module, arch, metadata = load_module(tmp_path / "a.pt")
    assert isinstance(module, nn.Linear) and not module.training
    assert arch == ARCH and metadata["data"] == "digits"


@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.", "model.", "module._orig_mod.", "net.inner."])
def test_prefixes_are_seen_through(prefix: str, tmp_path: Path) -> None:
    torch.save({"state_dict": {prefix + key: value for key, value in weights().items()}}, tmp_path / "a.pt")
    module, _, _ = load_module(tmp_path / "a.pt", ARCH)
    assert torch.equal(module.state_dict()["weight"], weights()["weight"])


def test_of_several_models_the_one_that_fits(tmp_path: Path) -> None:
    document = {"generator": {"conv.weight": torch.ones(1)}, "discriminator": weights()}
    torch.save(document, tmp_path / "a.pt")
    assert torch.equal(load_module(tmp_path / "a.pt", ARCH)[0].state_dict()["bias"], torch.ones(2))


def test_safetensors_with_arch(tmp_path: Path) -> None:
    save_file(weights(), tmp_path / "a.safetensors")
    assert torch.equal(load_module(tmp_path / "a.safetensors", ARCH)[0].state_dict()["bias"], torch.ones(2))


def test_a_tied_weight_may_be_left_out(tmp_path: Path) -> None:
    save_file({"emb.weight": torch.ones(9, 4)}, tmp_path / "a.safetensors")
    module, _, _ = load_module(tmp_path / "a.safetensors", ArchRef(f"{__name__}:tied"))
    assert module.state_dict()["head.weight"].sum() == 36


def tied() -> nn.Module:
    module = nn.ModuleDict({"emb": nn.Embedding(9, 4), "head": nn.Linear(4, 9, bias=False)})
    module["head"].weight = module["emb"].weight
    return module


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bias": None}, "lacks 'bias'"),
        ({"extra": torch.ones(1)}, "holds 'extra'"),
        ({"weight": torch.ones(3, 2)}, r"'weight' has shape \[3, 2\] where the architecture has \[2, 3\]"),
        ({"weight": torch.full((2, 3), torch.nan)}, "'weight' holds NaN"),
    ],
)
def test_what_does_not_fit_is_named(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    state = {key: value for key, value in {**weights(), **change}.items() if value is not None}
    torch.save(state, tmp_path / "a.pt")
    with pytest.raises(FileProblem, match=message):
        load_module(tmp_path / "a.pt", ARCH)
    with pytest.raises(FileProblem, match="--arch"):
        load_module(tmp_path / "a.pt")
