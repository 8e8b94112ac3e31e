"""Files that can be run without --arch: TorchScript, exported programs, pickled modules, Hugging Face folders."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from computekit import ComputekitError, FileProblem, load_module, save_module
from computekit.models import ArchRef

X = torch.arange(6.0).reshape(2, 3)


def net() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(3, 2)


def small_bert() -> Any:
    transformers = pytest.importorskip("transformers")
    return transformers.BertConfig(
        vocab_size=50, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torchscript_runs(tmp_path: Path) -> None:
    torch.jit.script(net()).save(str(tmp_path / "a.pt"))
    module, _, _ = load_module(tmp_path / "a.pt")
    assert torch.equal(module(X), net()(X))


def test_an_exported_program_runs_with_trust(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.export.save(torch.export.export(net(), (X,)), tmp_path / "a.pt2")
    with pytest.raises(FileProblem, match="--trust-pickle"):
        load_module(tmp_path / "a.pt2")
    assert torch.equal(load_module(tmp_path / "a.pt2", trust_pickle=True)[0](X), net()(X))


@pytest.mark.parametrize("nested", [False, True])
def test_a_pickled_module_runs_with_trust(nested: bool, tmp_path: Path) -> None:
    torch.save({"ema": nn.Linear(3, 2), "model": net()} if nested else net(), tmp_path / "a.pt")
    with pytest.raises(FileProblem, match="--trust-pickle"):
        load_module(tmp_path / "a.pt")
    module, arch, _ = load_module(tmp_path / "a.pt", trust_pickle=True)
    assert torch.equal(module(X), net()(X))
    assert arch.name == "torch.nn.modules.linear:Linear"


def test_a_folder_runs_from_its_config(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    model = transformers.BertModel(small_bert()).eval()
    model.save_pretrained(tmp_path / "a")
    module, arch, _ = load_module(tmp_path / "a")
    ids = torch.arange(10)[None]
    with torch.no_grad():
        assert torch.equal(module(ids).last_hidden_state, model(ids).last_hidden_state)
    save_module(module, tmp_path / "b.pt", arch)
    again, _, _ = load_module(tmp_path / "b.pt")
    assert type(again) is type(model)


def test_a_folder_may_hold_weights_that_its_class_does_not_have(tmp_path: Path) -> None:
    """Most BERTs were saved with the heads of their pretraining, and are loaded as something smaller."""
    transformers = pytest.importorskip("transformers")
    whole = transformers.BertForPreTraining(small_bert()).eval()
    whole.save_pretrained(tmp_path / "a")
    described = json.loads((tmp_path / "a" / "config.json").read_text())
    described["architectures"] = ["BertForMaskedLM"]
    (tmp_path / "a" / "config.json").write_text(json.dumps(described))
    module, _, _ = load_module(tmp_path / "a")
    assert type(module) is transformers.BertForMaskedLM
    ids = torch.arange(10)[None]
    with torch.no_grad():
        assert torch.equal(module(ids).logits, whole(ids).prediction_logits)


def test_a_config_that_transformers_does_not_know(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    torch.save({"a": torch.ones(1), "computekit": {"arch": {"name": "transformers", "args": {}}}}, tmp_path / "a.pt")
    for config in ({"model_type": "no-such-model"}, {"model_type": "bert", "hidden_size": "large"}, {}):
        save_module(net(), tmp_path / "a.pt", ArchRef("transformers", {"config": config}))
        with pytest.raises(ComputekitError):
            load_module(tmp_path / "a.pt")


@pytest.mark.parametrize("name", ["os:system", "builtins:exec", "subprocess:check_output", "builtins:print"])
def test_a_file_cannot_name_any_function_as_its_architecture(name: str, tmp_path: Path) -> None:
    save_module(net(), tmp_path / "a.pt", ArchRef(name, {"command": f"touch {tmp_path / 'canary'}"}))
    with pytest.raises(FileProblem, match="not declared to return a torch module"):
        load_module(tmp_path / "a.pt")
    assert not (tmp_path / "canary").exists()


@pytest.mark.parametrize("arch", [3, {"name": 3, "args": {}}, {"name": "mlp"}, {"name": "mlp", "args": 3}])
def test_a_damaged_memory_of_the_architecture_counts_as_none(arch: object, tmp_path: Path) -> None:
    torch.save({"state_dict": net().state_dict(), "computekit": {"arch": arch}}, tmp_path / "a.pt")
    with pytest.raises(FileProblem, match="without code"):
        load_module(tmp_path / "a.pt")
