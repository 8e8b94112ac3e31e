"""Inside a measuring process: what a rounded KV cache saves and changes, against the cache in the model's own type."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from computekit import ComputekitError
from computekit.evaluation import floating_dtype

if TYPE_CHECKING:
    import torch
    from torch import nn


def measure(module: nn.Module, prompt: torch.Tensor, tokens: int, cached: str, rounded: Any) -> dict[str, Any]:
    """Generate ``tokens`` greedy tokens after ``prompt`` (N, T) with the model's own cache; ``rounded`` reads along.

    Both see the same tokens at every step, so that one early difference does not decide about all that follow.
    ``cached`` is the name of the argument that takes the cache.

    Returns ``bytes`` of ``rounded`` and ``model_bytes`` of the model's cache at the end, which hold T + tokens - 1
    tokens; ``model_type``, in which the model runs; the number of predictions compared, ``tokens`` (N times those asked
    for), and how many of them have the ``same`` largest logit; ``kl_nats``, the sum of KL(model's own || rounded) over
    them; ``largest_logit_difference``. Both are None where logits are not finite.

    Raises:
        ComputekitError: the model returns no logits, or does not use the cache.
    """
    from computekit.models.kv_cache import cache_bytes

    plain: Any = None
    sequence = prompt
    same, kl, largest = 0, 0.0, 0.0
    for _ in range(tokens):
        output = module(sequence, use_cache=True, **{cached: plain})
        if not hasattr(output, "logits"):
            raise ComputekitError(
                "the model returns no logits, so there are no predictions that a KV cache could change"
            )
        plain = getattr(output, cached)
        expected = output.logits[:, -1].float()
        found = module(sequence, use_cache=True, **{cached: rounded}).logits[:, -1].float()
        sequence = expected.argmax(-1, keepdim=True)
        same += int((found.argmax(-1, keepdim=True) == sequence).sum())
        expected_log, found_log = expected.double().log_softmax(-1), found.double().log_softmax(-1)
        kl += float((expected_log.exp() * (expected_log - found_log)).sum())
        largest = max(largest, float((found - expected).abs().max()))
    size = cache_bytes(rounded)
    if not size:
        raise ComputekitError("the model takes a KV cache but stores nothing in it")
    finite = math.isfinite(kl)  # so it is for finite logits alone
    return {
        "bytes": size,
        "model_bytes": cache_bytes(plain),
        "model_type": str(floating_dtype(module)).removeprefix("torch."),
        "tokens": tokens * len(prompt),
        "same": same,
        "kl_nats": kl if finite else None,
        "largest_logit_difference": largest if finite else None,
    }
