"""Generation gives the same tokens with and without a cache, and stamps each of them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from computekit_benchmark import generation

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


def test_transformers_models_offer_a_cache():
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=16, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1
    )
    module = transformers.LlamaForCausalLM(config).eval()
    name = generation.cache_argument(module)
    assert name is not None
    assert len(generation.generate(module, torch.tensor([[1, 2, 3]]), 3, name, CPU)) == 3
