"""Generation gives the same tokens with and without a cache, and stamps each of them."""

from __future__ import annotations

import json

import pytest
import torch
from click.testing import CliRunner
from torch import nn

from computekit import cli
from computekit_benchmark import cache_effect, generation, repeated
from computekit_benchmark.jobs import Job, Subject

CPU = torch.device("cpu")


class Counting(nn.Module):
    """Predicts token + 1; remembers the lengths it was called with."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[int] = []

    def logits(self, tokens: torch.Tensor) -> torch.Tensor:
        self.seen.append(tokens.shape[1])
        return nn.functional.one_hot((tokens + 1) % 50, 50).float()


class Plain(Counting):
    def forward(self, tokens):
        return self.logits(tokens)


class Output:
    def __init__(self, logits, past_key_values):
        self.logits, self.past_key_values = logits, past_key_values


class Cached(Counting):
    def forward(self, tokens, past_key_values=None, use_cache=False):
        assert use_cache
        return Output(self.logits(tokens), (past_key_values or 0) + tokens.shape[1])


@pytest.mark.parametrize(("kind", "lengths"), [(Plain, [4, 5, 6]), (Cached, [4, 1, 1])])
def test_the_cache_is_used_where_there_is_one(kind, lengths):
    module = kind()
    prompt = torch.tensor([[1, 2, 3, 4]])
    stamps = generation.generate(module, prompt, 3, generation.cache_argument(module), CPU)
    assert module.seen == lengths
    assert stamps == sorted(stamps)
    assert len(stamps) == 3


def test_a_model_without_token_logits_is_refused():
    with pytest.raises(Exception, match="no logits"):
        generation.generate(nn.Flatten(), torch.zeros(1, 4), 2, None, CPU)


def llama(**sizes):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=16, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1, **sizes
    )
    return transformers.LlamaForCausalLM(config).eval()


def test_transformers_models_offer_a_cache():
    module = llama()
    name = generation.cache_argument(module)
    assert name is not None
    assert len(generation.generate(module, torch.tensor([[1, 2, 3]]), 3, name, CPU)) == 3


@torch.no_grad()
def test_the_effect_of_a_cache_on_itself_is_none():
    from transformers.cache_utils import DynamicCache

    module = llama()
    prompt = torch.randint(16, (2, 5))
    same = DynamicCache(config=module.config)
    found = cache_effect.measure(module, prompt, 3, generation.cache_argument(module), same)
    size = 2 * 2 * 7 * 8 * 4  # keys and values, batch, 5 + 3 - 1 tokens, head_dim, bytes
    expected = {"bytes": size, "model_bytes": size, "tokens": 6, "same": 6, "kl_nats": 0.0, "model_type": "float32"}
    assert found == {**expected, "largest_logit_difference": 0.0}


@torch.no_grad()
def test_a_worse_cache_has_a_larger_effect(monkeypatch):
    kv_cache = pytest.importorskip("computekit.models.kv_cache")
    module = llama(initializer_range=0.5)
    prompt = torch.randint(16, (4, 9), generator=torch.Generator().manual_seed(0))
    found = []
    for levels in (127, 3):
        monkeypatch.setattr(kv_cache, "_LEVELS", levels)
        cache = kv_cache.int8_cache(module.config)
        found.append(cache_effect.measure(module, prompt, 4, generation.cache_argument(module), cache))
    assert 0 < found[0]["kl_nats"] < found[1]["kl_nats"] / 100
    assert 0 < found[0]["largest_logit_difference"] < found[1]["largest_logit_difference"] / 5
    assert found[0]["bytes"] == 2 * 4 * 12 * (8 + 4)
    assert found[0]["model_bytes"] == 2 * 4 * 12 * 8 * 4


@torch.no_grad()
def test_logits_that_are_not_finite_give_no_number():
    kv_cache = pytest.importorskip("computekit.models.kv_cache")
    module = llama()
    module.lm_head.weight[3] = torch.inf
    cache = kv_cache.int8_cache(module.config)
    found = cache_effect.measure(
        module, torch.ones(1, 3, dtype=torch.long), 2, generation.cache_argument(module), cache
    )
    assert found["kl_nats"] is None
    assert found["largest_logit_difference"] is None


def test_an_encoder_that_could_have_a_cache_is_refused():
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    module = transformers.BertModel(transformers.BertConfig(vocab_size=16, **sizes)).eval()
    with pytest.raises(Exception, match="returns no logits"):
        cache_effect.measure(module, torch.ones(1, 3, dtype=torch.long), 1, generation.cache_argument(module), None)


def test_int8_needs_a_cache():
    job = Job(
        "generate",
        (Subject("m", None, "gpt"),),
        more={"prompts": (2,), "new_tokens": 1, "batch": 1, "kv_cache": "int8"},
    )
    with pytest.raises(Exception, match="--kv-cache int8 needs the KV cache of a transformers model"):
        generation.run(job)


@pytest.mark.slow
def test_the_command_reports_both_caches(tmp_path, monkeypatch):
    monkeypatch.setattr(repeated, "TRIALS", 2)
    llama().save_pretrained(tmp_path / "tiny")
    words = ["--prompt", "3,6", "--new-tokens", "2", "--batch-size", "2", "--kv-cache", "int8", "--threads", "1"]
    asked = ["generate", str(tmp_path / "tiny"), *words, "-o", str(tmp_path / "r.json")]
    result = CliRunner().invoke(cli.main, ["benchmark", *asked])
    assert result.exit_code == 0, result.output
    assert "B in int8" in result.output
    quantities = json.loads((tmp_path / "r.json").read_text())["rows"][0]["quantities"]
    vectors = 2 * 2 * 7  # keys and values, batch, 6 + 2 - 1 tokens
    assert quantities["kv_cache_bytes"]["value"] == vectors * (8 + 4)
    assert quantities["kv_cache_model_bytes"]["value"] == vectors * 8 * 4
    assert quantities["kv_cache_agreement"]["method"].endswith(
        "8 predictions after 6 random tokens and up to 1 greedy ones"  # of two trials
    )
    assert 0 <= quantities["kv_cache_agreement"]["value"] <= 1
    assert quantities["kv_cache_kl_nats"]["value"] >= 0
    assert "tpot_s" in quantities
