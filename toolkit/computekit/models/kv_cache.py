"""A KV cache of 8-bit integers for transformers models: `int8_cache` gives one, in place of the model's own.

Keys and values are rounded to [-127, 127] with a float32 scale per token and head: the largest magnitude of the head's
values / 127. (KIVI, Liu et al. 2024, arXiv:2402.02750, gives keys a scale per channel, which they need at 2 bits.) So a
token's integers never change, whatever comes after it, and each value is within half a step of what it was. An element
costs 1 + 4 / head_dim bytes.

Attention reads floats in the type of the model, which exist for one layer at a time. It reads rounded values only,
those of tokens that were just computed too, so a prompt is rounded alike in one pass and in pieces.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ..errors import ComputekitError, MissingExtra

try:
    from transformers.cache_utils import Cache, DynamicCache, DynamicLayer
except ImportError:
    raise MissingExtra("transformers", "hf", "a KV cache of 8-bit integers") from None

if TYPE_CHECKING:
    from torch import LongTensor, Tensor
    from transformers import PretrainedConfig

_LEVELS = 127


class Int8Layer(DynamicLayer):
    """Keys and values of one layer of full attention, int8 (batch, heads, tokens, head_dim).

    ``scales`` is a cache layer itself, of the scales (batch, heads, tokens, 1): whatever happens to tokens and samples
    happens to it too.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.scales = DynamicLayer()  # type: ignore[no-untyped-call]

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append tokens; returns all keys and all values, dequantized, in the types of the new ones."""
        (keys, key_scales), (values, value_scales) = _quantize(key_states), _quantize(value_states)
        keys, values = super().update(keys, values)
        key_scales, value_scales = self.scales.update(key_scales, value_scales)
        return _dequantize(keys, key_scales, key_states.dtype), _dequantize(values, value_scales, value_states.dtype)

    def reset(self) -> None:
        super().reset()
        self.scales.reset()

    def offload(self) -> None:
        super().offload()  # type: ignore[no-untyped-call]
        self.scales.offload()  # type: ignore[no-untyped-call]

    def prefetch(self) -> None:
        super().prefetch()  # type: ignore[no-untyped-call]
        self.scales.prefetch()  # type: ignore[no-untyped-call]

    def crop(self, length: int) -> None:
        super().crop(length)
        self.scales.crop(length)

    def reorder_cache(self, beam_idx: LongTensor) -> None:
        super().reorder_cache(beam_idx)
        self.scales.reorder_cache(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        super().batch_repeat_interleave(repeats)
        self.scales.batch_repeat_interleave(repeats)

    def batch_select_indices(self, indices: Tensor) -> None:
        super().batch_select_indices(indices)
        self.scales.batch_select_indices(indices)


def int8_cache(config: PretrainedConfig) -> Cache:
    """An empty cache for a model with this config: ``model(ids, use_cache=True, cache=int8_cache(model.config))``.

    ``model.generate`` takes it as well; older versions of transformers call the argument ``past_key_values``. Layers
    whose cache does not grow with the text, or holds more than keys and values (sliding windows, states of linear
    attention), keep it as it is.

    Raises:
        ComputekitError: no layer of the model has full attention.
    """
    layers = [Int8Layer() if type(layer) is DynamicLayer else layer for layer in DynamicCache(config=config).layers]
    if not any(isinstance(layer, Int8Layer) for layer in layers):
        raise ComputekitError("no layer keeps keys and values of all tokens, so there is nothing to store as int8")
    return Cache(layers=layers)


def cache_bytes(cache: Cache) -> int:
    """Bytes of the keys, values and scales in ``cache``, counted from its tensors."""
    found = 0
    for layer in cache.layers:
        for part in (layer, getattr(layer, "scales", None)):
            tensors = (getattr(part, "keys", None), getattr(part, "values", None))
            found += sum(t.numel() * t.element_size() for t in tensors if t is not None)
    return found


def _quantize(states: Tensor) -> tuple[Tensor, Tensor]:
    """``states`` (..., head_dim) as int8 and scales float32 (..., 1), which are not finite where it is not."""
    exact = states.float()
    scales = exact.abs().amax(-1, keepdim=True).div_(_LEVELS).clamp_min_(torch.finfo(torch.float32).tiny)
    return exact.div(scales).round_().clamp_(-_LEVELS, _LEVELS).to(torch.int8), scales


def _dequantize(integers: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    return integers.float().mul_(scales).to(dtype)
