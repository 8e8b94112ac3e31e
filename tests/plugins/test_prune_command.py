"""``computekit prune`` on real files: what it writes, what it says, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result
from torch import nn

pytest.importorskip("torch_pruning")

import computekit
from computekit import models
from computekit.cli import main

MLP = models.ArchRef("mlp", {"hidden": 16})


def prune(*words: str | Path) -> Result:
    return CliRunner().invoke(main, ["prune", *map(str, words), "--threads", "1"])


def quantities(model: Path) -> dict[str, Any]:
    document = json.loads(model.with_name(model.name + ".record.json").read_text())
    return {key: quantity.get("value") for key, quantity in document["rows"][0]["quantities"].items()}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    path = tmp_path / "model.pt"
    computekit.save_module(models.build(MLP), path, MLP, data="digits")
    return path


def test_pruned_file_opens_as_the_smaller_model(model: Path) -> None:
    result = prune(model, "--ratio", "0.25", "--data", "digits", "--epochs", "1")
    assert result.exit_code == 0, result.output
    output = model.with_name("model-pruned.pt")
    module, arch, metadata = computekit.load_module(output)
    assert (arch.name, metadata["pruned"], metadata["data"]) == ("mlp", True, "digits")
    assert [layer.out_features for layer in module.hidden] == [12, 12]
    found = quantities(output)
    assert found["parameters"] == sum(p.numel() for p in module.parameters())
    assert 0.5 < found["parameters_left"] < 0.8
    assert found["forward_flops"] == 2 * (64 * 12 + 12 * 12 + 12 * 10)
    assert {"accuracy", "accuracy_of_input", "accuracy_before_fine_tuning", "accuracy_difference"} <= set(found)
    assert found["file_bytes"] == output.stat().st_size < model.stat().st_size


def test_without_data_it_says_that_nothing_was_fine_tuned(model: Path) -> None:
    result = prune(model)
    assert result.exit_code == 0, result.output
    record = json.loads((model.parent / "model-pruned.pt.record.json").read_text())
    assert "without fine-tuning" in record["notes"][0]
    assert "accuracy" not in record["rows"][0]["quantities"]


def test_same_seed_same_bytes_and_pruning_twice(model: Path) -> None:
    words = ("--ratio", "0.3", "--criterion", "random", "--data", "digits", "--epochs", "1", "--seed", "3")
    outputs = [model.with_name(name) for name in ("a.pt", "b.pt")]
    for output in outputs:
        assert prune(model, *words, "-o", output).exit_code == 0
    assert outputs[0].read_bytes() == outputs[1].read_bytes()
    again = prune(outputs[0], "--ratio", "0.5", "-o", model.with_name("c.pt"))
    assert again.exit_code == 0, again.output
    assert computekit.load_module(model.with_name("c.pt"))[0].hidden[0].out_features == 6


def test_weights_without_code_need_an_architecture(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = model.parent
    (folder / "own_net.py").write_text(
        "from torch import nn\n\ndef build(width=8) -> nn.Module:\n"
        "    return nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 2))\n"
    )
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    torch.save(net.state_dict(), "weights.pt")
    refused = prune("weights.pt")
    assert refused.exit_code == 1 and "--arch" in refused.output
    refused = prune("weights.pt", "--arch", "own_net:build")
    assert refused.exit_code == 1 and "--input-shape" in refused.output
    done = prune("weights.pt", "--arch", "own_net:build", "--input-shape", "4")
    assert done.exit_code == 0, done.output
    assert computekit.load_module("weights-pruned.pt")[0][0].out_features == 4


def test_criterion_of_gradients_needs_data_and_uses_it(model: Path) -> None:
    refused = prune(model, "--criterion", "taylor")
    assert refused.exit_code == 2 and "--data" in refused.output
    outputs = {name: model.with_name(f"{name}.pt") for name in ("taylor", "l2")}
    for name, output in outputs.items():
        result = prune(model, "--criterion", name, "--data", "digits", "--epochs", "1", "-o", output)
        assert result.exit_code == 0, result.output
    assert outputs["taylor"].read_bytes() != outputs["l2"].read_bytes()


def test_half_precision_stays_half_precision(tmp_path: Path) -> None:
    path = tmp_path / "half.pt"
    computekit.save_module(models.build(MLP).to(torch.bfloat16), path, MLP)
    result = prune(path, "--data", "digits", "--epochs", "1")
    assert result.exit_code == 0, result.output
    tensors = computekit.open_model(tmp_path / "half-pruned.pt").tensors
    assert {info.dtype for info in tensors.values()} == {torch.bfloat16}


def test_target_flops(model: Path) -> None:
    result = prune(model, "--target-flops", "0.6")
    assert result.exit_code == 0, result.output
    assert 0.5 < quantities(model.with_name("model-pruned.pt"))["forward_flops_left"] <= 0.6
    assert prune(model, "--target-flops", "0.6", "--ratio", "0.5").exit_code == 2


def test_file_that_is_no_part_of_its_architecture_names_file_and_tensor(tmp_path: Path) -> None:
    path = tmp_path / "odd.pt"
    computekit.save_module(models.build(models.ArchRef("mlp", {"hidden": 32})), path, MLP, pruned=True)
    result = prune(path)
    assert result.exit_code == 1
    assert f"{path}: 'hidden.0.weight' has shape [32, 64]" in result.output


@pytest.mark.parametrize("ratio", ["0", "1", "1.5", "nan", "half"])
def test_ratio_outside_0_and_1_is_wrong_usage(model: Path, ratio: str) -> None:
    result = prune(model, "--ratio", ratio)
    assert result.exit_code == 2, result.output
    assert not (model.parent / "model-pruned.pt").exists()


def test_quantized_model_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "int8.pt"
    computekit.save_module(models.build(MLP), path, MLP, compression={"scheme": "int8"})
    result = prune(path)
    assert result.exit_code == 1
    assert "quantize" in result.output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--criterion", "l3"), "unknown criterion 'l3'; known: l1, l2, random, taylor"),
        (("--round-to", "16", "--ratio", "0.1"), "nothing was removed"),
        (("--data", "digit"), "did you mean digits?"),
        (("--input-shape", "7"), "mlp does not take inputs of shape 2x7"),
    ],
)
def test_bad_requests_are_one_line_and_write_nothing(model: Path, words: tuple[str, ...], message: str) -> None:
    result = prune(model, *words)
    assert result.exit_code == 1
    assert message in result.output and "Traceback" not in result.output and "internal error" not in result.output
    assert sorted(path.name for path in model.parent.iterdir()) == ["model.pt"]


def test_plugin_criterion_is_used(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import computekit_prune
    from computekit import host

    class Plugin:
        @computekit.hookimpl
        def computekit_prune_criteria(self) -> list[computekit_prune.Criterion]:
            return [computekit_prune.Criterion("first", "keep the last channels", lambda w: torch.arange(len(w)))]

    registry = host.Host.of(("prune", computekit_prune), ("mine", Plugin()))
    monkeypatch.setattr(host, "current", lambda: registry)
    before = computekit.load_module(model)[0]
    result = prune(model, "--criterion", "first")
    assert result.exit_code == 0, result.output
    after = computekit.load_module(model.parent / "model-pruned.pt")[0]
    assert torch.equal(after.hidden[0].weight, before.hidden[0].weight[8:])
