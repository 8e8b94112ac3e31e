"""The KV cache of 8-bit integers holds what the plain one holds within half a step, through all that is done to it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers")

from transformers.cache_utils import Cache, DynamicCache  # noqa: E402

from computekit import ComputekitError  # noqa: E402
from computekit.models import kv_cache  # noqa: E402

HEADS, WIDTH = 2, 8


def config(**changes: Any) -> Any:
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    sizes = sizes | {"num_key_value_heads": HEADS, "vocab_size": 64, "pad_token_id": 0, "eos_token_id": 63}
    return transformers.LlamaConfig(**(sizes | changes))


def model(dtype: torch.dtype = torch.float32) -> Any:
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(config(initializer_range=0.3)).eval().to(dtype)


def argument(forward: Callable[..., Any]) -> str:
    """What this version of transformers calls the argument for the cache."""
    return "cache" if "cache" in inspect.signature(forward).parameters else "past_key_values"


def states(batch: int, tokens: int, seed: int = 0) -> torch.Tensor:
    made = torch.randn(batch, HEADS, tokens, WIDTH, generator=torch.Generator().manual_seed(seed))
    made[..., 1] *= 20  # a channel of outliers, as keys have
    return made


def both(*pieces: int, batch: int = 3) -> tuple[Cache, DynamicCache]:
    """The two caches, filled with the same random tokens in ``pieces``."""
    rounded, plain = kv_cache.int8_cache(config()), DynamicCache(config=config())
    for number, tokens in enumerate(pieces):
        for layer in range(2):
            new = states(batch, tokens, 7 * number + layer), states(batch, tokens, 100 + 7 * number + layer)
            for cache in (rounded, plain):
                cache.update(*new, layer)
    return rounded, plain


def assert_close(rounded: Cache, plain: DynamicCache) -> None:
    """Every element within half of its own step, and lengths equal."""
    assert rounded.get_seq_length() == plain.get_seq_length()
    for ours, theirs in zip(rounded.layers, plain.layers, strict=True):
        for integers, scales, exact in (
            (ours.keys, ours.scales.keys, theirs.keys),
            (ours.values, ours.scales.values, theirs.values),
        ):
            assert integers.dtype == torch.int8
            assert integers.shape == exact.shape
            assert torch.equal(scales, exact.abs().amax(-1, keepdim=True) / 127)
            assert bool(((integers * scales - exact).abs() <= scales * 0.50001).all())


@pytest.mark.parametrize(
    "change",
    [
        lambda cache: None,
        lambda cache: cache.reorder_cache(torch.tensor([2, 0, 0])),
        lambda cache: cache.crop(-4),
        lambda cache: cache.batch_repeat_interleave(2),
        lambda cache: cache.batch_select_indices(torch.tensor([1])),
    ],
    ids=["update", "reorder", "crop", "repeat", "select"],
)
def test_it_holds_what_the_plain_one_holds(change: Callable[[Any], None]) -> None:
    rounded, plain = both(5, 1, 1)
    change(rounded)
    change(plain)
    assert_close(rounded, plain)
    batch = plain.layers[0].keys.shape[0]
    new = states(batch, 2, 50), states(batch, 2, 51)
    assert rounded.update(*new, 1)[0].shape == plain.update(*new, 1)[0].shape
    rounded.update(*new, 0), plain.update(*new, 0)
    assert_close(rounded, plain)


def test_after_a_reset_it_is_as_new() -> None:
    rounded, _ = both(5)
    rounded.reset()
    assert rounded.get_seq_length() == 0
    assert kv_cache.cache_bytes(rounded) == 0
    rounded.update(states(1, 2), states(1, 2), 0)
    assert rounded.get_seq_length() == 2


def test_bytes_are_one_per_value_and_four_per_scale() -> None:
    rounded, plain = both(5, 1)
    vectors = 2 * 2 * 3 * HEADS * 6  # keys and values, layers, batch, heads, tokens
    assert kv_cache.cache_bytes(rounded) == vectors * (WIDTH + 4)
    assert kv_cache.cache_bytes(plain) == vectors * WIDTH * 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_what_attention_reads_has_the_models_type(dtype: torch.dtype) -> None:
    cache = kv_cache.int8_cache(config())
    keys, values = states(1, 4).to(dtype), torch.zeros(1, HEADS, 4, WIDTH, dtype=dtype)
    read = cache.update(keys, values, 0)
    assert read[0].dtype == read[1].dtype == dtype
    step = keys.float().abs().amax(-1, keepdim=True) / 127
    # half a step, and the rounding of the type itself
    bound = step * 0.50001 + keys.float().abs() * torch.finfo(dtype).eps
    assert bool(((read[0].float() - keys.float()).abs() <= bound).all())
    assert torch.equal(read[1], values)


def test_what_is_not_finite_stays_so_and_spoils_no_other_token() -> None:
    cache = kv_cache.int8_cache(config())
    keys = states(1, 3)
    keys[0, 0, 1, 2] = torch.inf
    read, _ = cache.update(keys, states(1, 3), 0)
    assert not bool(read[0, 0, 1].isfinite().all())
    assert bool(read[0, :, [0, 2]].isfinite().all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.no_grad()
def test_a_prompt_in_pieces_is_rounded_like_one_in_a_single_pass(dtype: torch.dtype) -> None:
    llama = model(dtype)
    name = argument(llama.forward)
    ids = torch.randint(1, 63, (2, 12))
    whole, pieces = kv_cache.int8_cache(llama.config), kv_cache.int8_cache(llama.config)
    expected = llama(ids, use_cache=True, **{name: whole}).logits
    found = [llama(part, use_cache=True, **{name: pieces}).logits for part in ids.split([7, 1, 4], 1)]
    exact = llama(ids).logits
    scale = float(exact.float().std())
    between = float((torch.cat(found, 1) - expected).float().abs().max())
    assert between < (0.01 if dtype == torch.float32 else 0.15) * scale
    assert 0 < float((expected - exact).float().abs().max()) < 0.2 * scale
    for ours, theirs in zip(whole.layers, pieces.layers, strict=True):
        assert int((ours.keys.int() - theirs.keys.int()).abs().max()) <= (1 if dtype == torch.float32 else 3)


@torch.no_grad()
def test_beam_search_takes_it() -> None:
    llama = model()
    ids = torch.randint(1, 63, (2, 6), generator=torch.Generator().manual_seed(1))
    asked = {"max_new_tokens": 6, "num_beams": 3, "do_sample": False}
    plain = llama.generate(ids, **asked)
    cache = kv_cache.int8_cache(llama.config)
    rounded = llama.generate(ids, **{argument(llama.forward): cache}, **asked)
    assert cache.layers[0].keys.shape == (6, HEADS, 11, WIDTH)
    assert torch.equal(rounded, plain)


def test_layers_with_a_window_stay_as_they_are() -> None:
    mixed = transformers.Qwen2Config(
        hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4, use_sliding_window=True,
        layer_types=["full_attention", "sliding_attention"], sliding_window=4, vocab_size=64,
    )  # fmt: skip
    kinds = [type(layer).__name__ for layer in kv_cache.int8_cache(mixed).layers]
    assert kinds == ["Int8Layer", "DynamicSlidingWindowLayer"]
    windows = transformers.MistralConfig(num_hidden_layers=2, sliding_window=4)
    with pytest.raises(ComputekitError, match="nothing to store as int8"):
        kv_cache.int8_cache(windows)
