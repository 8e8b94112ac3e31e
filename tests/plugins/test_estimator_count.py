"""``computekit estimator count``: files with and without code, configs, dimensions, and what cannot be counted."""

from __future__ import annotations

import json

import pytest
import torch
from click.testing import CliRunner
from torch import nn

import computekit
from computekit import ComputekitError, files, flops
from computekit.cli import main
from computekit.models import ArchRef, build
from computekit_estimator import count, source, transformer, vision

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
    assert row(exported, "--trust-pickle")["quantities"]["forward_flops"]["value"] == expected
    careful = row(exported)["quantities"]
    assert careful["parameters"]["value"] == trusted["parameters"]["value"]
    assert "--trust-pickle" in careful["forward_flops"]["reason"]


@pytest.mark.parametrize(
    ("dynamic", "samples", "said"),
    [(True, 1, "one sample"), (False, 3, "3 samples at once, as the program was exported")],
)
def test_programs_know_the_shapes_that_they_were_exported_with(tmp_path, dynamic, samples, said):
    shapes = ({0: torch.export.Dim("batch")},) if dynamic else None
    program = torch.export.export(nn.Linear(8, 4), (torch.zeros(3, 8),), dynamic_shapes=shapes)
    torch.export.save(program, tmp_path / "program.pt2")
    forward = row(tmp_path / "program.pt2", "--trust-pickle")["quantities"]["forward_flops"]
    assert forward["value"] == samples * 2 * 8 * 4 and forward["method"] == f"{said}, run on the meta device"


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


@pytest.mark.parametrize(
    ("kind", "named", "small"),
    [
        ("llama", "LlamaForCausalLM", {}),
        ("gpt2", "GPT2LMHeadModel", {}),
        ("bloom", "BloomForCausalLM", {}),
        ("falcon", "FalconForCausalLM", {}),
        ("mixtral", "MixtralForCausalLM", {"num_local_experts": 4}),
        ("deepseek_v3", "DeepseekV3ForCausalLM", {"n_routed_experts": 16, "first_k_dense_replace": 1, "n_group": 1,
                                                  "topk_group": 1}),
        ("olmoe", "OlmoeForCausalLM", {"num_experts": 8}),
    ],
)  # fmt: skip
def test_dimensions_agree_with_the_built_model(kind, named, small):
    """Two ways to the same FLOPs: the operators of the model as built, and the formulas of its dimensions."""
    transformers = pytest.importorskip("transformers")
    layers = "n_layer" if kind in ("gpt2", "bloom") else "num_hidden_layers"
    config = transformers.AutoConfig.for_model(kind, **{layers: 2}, **small).to_dict()
    subject = source.Subject(label=kind)
    source._build_config(subject, {**config, "model_type": kind, "architectures": [named]}, (1, 64))
    cost = count.counted(subject)
    assert subject.dims is not None
    assert cost.forward == subject.dims.forward_flops(64)
    assert subject.dims.parameters == pytest.approx(subject.parameters, rel=0.002)
    assert not cost.unknown


def test_a_model_with_layers_of_other_kinds_has_no_transformer_dimensions():
    with pytest.raises(ComputekitError, match="not all layers are attention: linear_attention"):
        transformer.from_config({"num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 4,
                                 "layer_types": ["linear_attention", "full_attention"]})  # fmt: skip


@pytest.mark.parametrize(
    ("name", "parameters", "macs"),
    [("ResNet152", 60_192_808, 11.514e9), ("ResNeXt50_32x4d", 25_028_904, 4.23e9), ("VGG11", 132_863_336, 7.609e9),
     ("Wide_ResNet50_2", 68_883_240, 11.398e9), ("RegNet_X_400MF", 5_495_976, 0.414e9)],
)  # fmt: skip
def test_image_models_by_name(name, parameters, macs):
    """Parameters and multiply-adds that torchvision publishes with its weights."""
    with torch.device("meta"):
        module = vision.build(name).eval()
    assert sum(p.numel() for p in module.parameters()) == parameters
    assert flops.count(module, torch.zeros(1, 3, 224, 224), backward=False).macs == pytest.approx(macs, rel=2e-3)
