"""Hugging Face folders: plain transformers reads what ``computekit quantize`` writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import pytest
import torch
from click.testing import CliRunner

import computekit
from computekit.cli import main
from computekit.models import TensorInfo
from computekit_quantize import huggingface, plan, search, writing

transformers = pytest.importorskip("transformers")
pytest.importorskip("compressed_tensors")

pytestmark = pytest.mark.slow


def run(*words: str | Path) -> str:
    result = CliRunner().invoke(main, [str(word) for word in words])
    assert result.exit_code == 0, result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small decoder with a tied head, and rows (96) that no group of 64 divides."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=256, hidden_size=96, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, tie_word_embeddings=True,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("hf") / "llama"
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("words", ["int8", "int4", "int4-asym", "fp8", "int4 --scales bf16"])
def test_transformers_and_computekit_generate_the_same_text(llama: Path, tmp_path: Path, words: str) -> None:
    folder = tmp_path / "small"
    run("quantize", "--scheme", *words.split(), llama, "-o", folder)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    config = transformers.AutoConfig.from_pretrained(llama)
    ours = computekit.load_into(transformers.LlamaForCausalLM(config), folder)
    prompt = torch.arange(5)[None]
    texts = [m.generate(prompt, max_new_tokens=20, do_sample=False, pad_token_id=0) for m in (theirs, ours)]
    assert torch.equal(texts[0], texts[1])
    tolerance = {"atol": 5e-3, "rtol": 0.0} if "--scales" in words else {}  # it rounds such weights to bfloat16
    torch.testing.assert_close(theirs(prompt).logits, ours(prompt).logits, **tolerance)
    assert theirs.lm_head.weight is theirs.model.embed_tokens.weight


def test_rows_that_the_group_does_not_divide_get_smaller_groups(llama: Path, tmp_path: Path) -> None:
    record = json.loads(run("quantize", "--int4", "--group-size", "64", llama, "-o", tmp_path / "small", "--json"))
    assert "15 weights have groups of 32: 64 does not divide the rows of all" in record["notes"]
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "small")
    config = transformers.AutoConfig.from_pretrained(llama)
    ours = computekit.load_into(transformers.LlamaForCausalLM(config), tmp_path / "small")
    prompt = torch.arange(5)[None]
    torch.testing.assert_close(theirs(prompt).logits, ours(prompt).logits)


TOKENS = """
import torch
from computekit import Data, Split

def tokens():
    ids = torch.randint(256, (24, 33), generator=torch.Generator().manual_seed(0))
    split = Split(ids[:, :-1], ids[:, 1:])
    return Data("tokens", "language-modeling", split, split, split, 256, "made here")
"""


@pytest.mark.parametrize(("scheme", "folds"), [("gptq", None), ("awq-gptq", 6)])
def test_calibrated_folders_are_read_by_transformers(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str, folds: int | None
) -> None:
    (tmp_path / "made_tokens.py").write_text(TOKENS)
    monkeypatch.syspath_prepend(tmp_path)
    words = ("--calibration", "made_tokens:tokens", "-o", tmp_path / "small", "--json")
    record = json.loads(run("quantize", "--scheme", scheme, llama, *words))
    assert len(record["details"].get("folded", [])) == (folds or 0)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "small").eval()
    config = transformers.AutoConfig.from_pretrained(llama)
    ours = computekit.load_into(transformers.LlamaForCausalLM(config), tmp_path / "small")
    prompt = torch.arange(5)[None]
    texts = [m.generate(prompt, max_new_tokens=20, do_sample=False, pad_token_id=0) for m in (theirs, ours)]
    assert torch.equal(texts[0], texts[1])
    assert theirs.lm_head.weight is theirs.model.embed_tokens.weight


def test_groups_are_the_largest_that_cut_all_rows_evenly() -> None:
    def infos(*rows: int) -> list[TensorInfo]:
        return [TensorInfo("a.weight", (4, size), torch.float32, 16 * size) for size in rows]

    assert huggingface.common_group(infos(576, 1536), 128) == 96
    assert huggingface.common_group(infos(96, 128), 64) == 32
    assert huggingface.common_group(infos(96, 131), 64) == 64
    assert huggingface.unreadable(infos(131)[0], 64) == "rows are not a multiple of 64"


def test_excluded_layers_are_not_among_the_targets(llama: Path, tmp_path: Path) -> None:
    run("quantize", "--int8", llama, "-o", tmp_path / "small", "--exclude", "model.layers.1.mlp.down_proj.*")
    config = json.loads((tmp_path / "small" / "config.json").read_text())
    targets = config["quantization_config"]["config_groups"]["group_0"]["targets"]
    assert r"re:(.*\.)?model\.layers\.0\.mlp\.down_proj$" in targets
    assert r"re:(.*\.)?model\.layers\.\d+\.mlp\.up_proj$" in targets
    assert not any("layers" in target and "1" in target for target in targets)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "small")
    original = transformers.AutoModelForCausalLM.from_pretrained(llama)
    kept = [m.model.layers[1].mlp.down_proj.weight for m in (model, original)]
    assert torch.equal(kept[0], kept[1])


def test_dequantized_folders_are_plain_again(llama: Path, tmp_path: Path) -> None:
    run("quantize", "--int8", llama, "-o", tmp_path / "small")
    run("dequantize", tmp_path / "small", "-o", tmp_path / "back")
    assert "quantization_config" not in json.loads((tmp_path / "back" / "config.json").read_text())
    back, small = (transformers.AutoModelForCausalLM.from_pretrained(tmp_path / name) for name in ("back", "small"))
    prompt = torch.arange(5)[None]
    torch.testing.assert_close(back(prompt).logits, small(prompt).logits)


def test_folders_of_other_quantizers_are_refused(llama: Path, tmp_path: Path) -> None:
    folder = tmp_path / "gptq"
    transformers.LlamaForCausalLM(transformers.AutoConfig.from_pretrained(llama)).save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": {"quant_method": "gptq"}}))
    result = CliRunner().invoke(main, ["quantize", "--int8", str(folder)])
    assert result.exit_code == 1
    assert "quantized already (by gptq)" in result.stderr


def test_transformers_reads_folders_with_static_activations(llama: Path, tmp_path: Path) -> None:
    folder = tmp_path / "static"
    run("quantize", "--int8", "--activations", "static", "--calibration", "pydoc", llama, "-o", folder)
    about = json.loads((folder / "config.json").read_text())["quantization_config"]
    static = [group for group in about["config_groups"].values() if "input_activations" in group]
    assert [group["input_activations"]["strategy"] for group in static] == ["tensor"]
    config = transformers.AutoConfig.from_pretrained(llama)
    ours = computekit.load_into(transformers.LlamaForCausalLM(config), folder)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    plain = transformers.AutoModelForCausalLM.from_pretrained(llama).eval()
    prompt = torch.arange(40)[None]
    with torch.no_grad():
        logits = plain(prompt).logits
        for each in (ours(prompt).logits, theirs(prompt).logits):
            assert torch.cosine_similarity(each, logits, -1).min() > 0.99
        assert not torch.equal(ours(prompt).logits, theirs(prompt).logits)


def mixed(run: computekit.StepRun, folder: Path, target: Path, wishes: list[plan.Treatment | None]) -> None:
    """Write ``folder`` with treatments that alternate, also within a kind of layer."""
    source = computekit.open_model(folder)
    decisions, quantized = [], 0
    for decision in plan.make(source, plan.Request("int8")):
        if decision.quantized:
            decision = search.treated(decision, wishes[quantized % len(wishes)])
            quantized += 1
        decisions.append(decision)
    writing.write(run, source, target, decisions, plan.Request("int8").treatment)


@pytest.fixture
def step() -> computekit.StepRun:
    made = computekit.StepRun(click.Context(click.Command("quantize")), None, 0, "cpu", None, None, False)
    made.quiet = True
    return made


def outputs(model: Any) -> torch.Tensor:
    with torch.no_grad():
        logits: torch.Tensor = model(torch.arange(5)[None]).logits
    return logits


INT8 = plan.Request("int8").treatment
DYNAMIC = plan.Request("int8", activations="dynamic").treatment


def test_plain_transformers_reads_a_mixture_of_one_layout(
    llama: Path, tmp_path: Path, step: computekit.StepRun
) -> None:
    mixed(step, llama, tmp_path / "mixed", [INT8, DYNAMIC, None])
    groups = json.loads((tmp_path / "mixed" / "config.json").read_text())["quantization_config"]["config_groups"]
    assert len(groups) == 2
    theirs = outputs(transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "mixed").eval())
    ours = outputs(computekit.load_module(tmp_path / "mixed")[0])
    assert torch.cosine_similarity(theirs.flatten(), ours.flatten(), 0) > 0.999  # ours rounds some inputs
    assert not step.notes


def test_a_mixture_of_layouts_is_for_computekit_until_it_is_dequantized(
    llama: Path, tmp_path: Path, step: computekit.StepRun
) -> None:
    mixed(step, llama, tmp_path / "mixed", [INT8, plan.Request("int4").treatment, DYNAMIC, None])
    assert "plain transformers reads folders with one" in step.notes[0]
    run("dequantize", tmp_path / "mixed", "-o", tmp_path / "floats")
    plain = outputs(transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "floats").eval())
    ours = outputs(computekit.load_module(tmp_path / "mixed")[0])
    assert torch.cosine_similarity(plain.flatten(), ours.flatten(), 0) > 0.999
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "mixed").eval()
    with pytest.raises(RuntimeError):  # never a wrong result
        outputs(theirs)
