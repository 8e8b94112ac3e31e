"""``computekit estimator count``: files with and without code, configs, dimensions, and what cannot be counted."""

from __future__ import annotations

import json

import pytest
import torch
from click.testing import CliRunner
from torch import nn

import computekit
from computekit import files
from computekit.cli import main
from computekit.models import ArchRef, build

GPT2 = {"model_type": "gpt2", "n_layer": 2, "n_embd": 64, "n_head": 4, "vocab_size": 100, "n_positions": 32}


def run(*words: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(main, ["estimator", *map(str, words)])
    return result.exit_code, result.stdout, result.stderr


def row(*words: object) -> dict:
    code, out, err = run("count", *words, "--json")
    assert code == 0, err
    (found,) = json.loads(out)["rows"]
    return found


@pytest.fixture
def own(tmp_path):
    """A model file that remembers its architecture."""
    arch = ArchRef("mlp", {})
    path = tmp_path / "own.pt"
    computekit.save_module(build(arch), path, arch)
    return path


def test_a_file_of_ours_is_counted_and_keyed_by_its_hash(own):
    found = row(own)
    module = build(ArchRef("mlp", {}))
    weights = sum(m.weight.numel() for m in module.modules() if isinstance(m, nn.Linear))
    assert found["sha256"] == files.sha256(own)
    assert found["quantities"]["parameters"]["value"] == sum(p.numel() for p in module.parameters())
    assert found["quantities"]["forward_flops"]["value"] == 2 * weights
    assert found["quantities"]["forward_macs"]["value"] == weights


def test_weights_without_code_have_parameters_and_a_reason(tmp_path):
    path = tmp_path / "weights.pt"
    torch.save({"a.weight": torch.zeros(3, 4), "b": torch.zeros(5)}, path)
    quantities = row(path)["quantities"]
    assert quantities["parameters"]["value"] == 17
    assert quantities["weight_bytes"]["value"] == 68
    assert "value" not in quantities["forward_flops"]
    assert "--arch" in quantities["forward_flops"]["reason"]


def test_tied_weights_count_once(tmp_path):
    path = tmp_path / "tied.pt"
    shared = torch.zeros(3, 4)
    torch.save({"a.weight": shared, "b.weight": shared}, path)
    assert row(path)["quantities"]["parameters"]["value"] == 12


def test_dimensions_agree_with_the_model_that_transformers_builds(tmp_path):
    pytest.importorskip("transformers")
    config = tmp_path / "config.json"
    config.write_text(json.dumps({**GPT2, "architectures": ["GPT2LMHeadModel"]}))
    built = row("--config", config)["quantities"]
    from computekit_estimator.transformer import from_config

    dims = from_config(GPT2)
    assert built["parameters"]["value"] == dims.parameters
    assert built["forward_flops"]["value"] == dims.forward_flops(32)
    assert built["forward_causal_flops"]["value"] == dims.forward_flops(32, causal=True)


def test_a_mixture_of_experts_shows_active_and_total():
    quantities = row("--layers", 2, "--hidden", 64, "--heads", 4, "--experts", 8, "--topk", 2)["quantities"]
    idle = 2 * 6 * (2 * 64 * 256 + 256 + 64)
    assert quantities["parameters"]["value"] - quantities["active_parameters"]["value"] == idle


def test_input_shape_and_architecture_by_import():
    quantities = row("--arch", "torch.nn:Linear", "--arch-args", "in_features=6,out_features=3", "--input-shape", "2,6")
    assert quantities["quantities"]["forward_flops"]["value"] == 2 * 2 * 6 * 3


def test_an_architecture_without_example_says_what_to_give():
    quantities = row("--arch", "torch.nn:Linear", "--arch-args", "in_features=6,out_features=3")["quantities"]
    assert "--input-shape" in quantities["forward_flops"]["reason"]


def test_default_of_the_group_is_count(own):
    assert run(own)[0] == 0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("count", "--layers", 4), "belong together"),
        (("count", "--layers", 4, "--hidden", 100, "--heads", 7), "hidden 100 is not a multiple of heads 7"),
        (("count", "--layers", 4, "--hidden", 64, "--heads", 4, "--kv-heads", 3), "the nearest is"),
        (("count", "--layers", 4, "--hidden", 64, "--heads", 4, "--experts", 2, "--topk", 3), "topk"),
        (("count",), "give a model file"),
        (("count", "missing.pt"), "no such model file"),
        (("count", "--arch", "mpl"), "did you mean"),
        (("count", "--input-shape", "1,0,3", "--arch", "mlp"), "not a list of whole numbers"),
    ],
)
def test_bad_input_is_one_line(words, says):
    code, _, err = run(*words)
    assert code in (1, 2)
    assert says in err and len(err.strip().splitlines()) == 1


def test_a_config_that_is_none(tmp_path):
    path = tmp_path / "config.json"
    path.write_text("[1, 2]")
    code, _, err = run("count", "--config", path)
    assert code == 1 and "config" in err


def test_programs_are_counted_as_a_whole(tmp_path):
    module = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 6 * 6, 10)).eval()
    expected = 2 * (6 * 6 * 8 * 3 * 9 + 8 * 6 * 6 * 10)
    script, exported = tmp_path / "script.pt", tmp_path / "exported.pt2"
    torch.jit.script(module).save(script)
    torch.export.save(torch.export.export(module, (torch.zeros(1, 3, 8, 8),)), exported)
    assert row(script, "--input-shape", "3,8,8")["quantities"]["forward_flops"]["value"] == expected
    trusted = row(exported, "--trust-pickle", "--input-shape", "3,8,8")["quantities"]
    assert trusted["forward_flops"]["value"] == expected
    careful = row(exported)["quantities"]
    assert careful["parameters"]["value"] == trusted["parameters"]["value"]
    assert "--trust-pickle" in careful["forward_flops"]["reason"]


def test_a_config_of_experts_counts_active_products(tmp_path):
    pytest.importorskip("transformers")
    config = tmp_path / "config.json"
    config.write_text(json.dumps({
        "model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "hidden_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 96, "vocab_size": 128,
        "num_local_experts": 4, "num_experts_per_tok": 2, "max_position_embeddings": 64,
    }))  # fmt: skip
    quantities = row("--config", config, "--seq", 64)["quantities"]
    from computekit_estimator.transformer import from_config

    dims = from_config(json.loads(config.read_text()))
    assert quantities["forward_flops"]["value"] == dims.forward_flops(64)
    assert quantities["active_parameters"]["value"] < quantities["parameters"]["value"]
