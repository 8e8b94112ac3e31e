"""Inside a measuring process: greedy generation by a language model, token by token.

*Time to first token* is the pass over the prompt; *time per output token* is the mean over the tokens after the first.
The KV cache is used where the model offers one as transformers do (``use_cache``, and ``past_key_values`` or, in newer
versions, ``cache``); without it every token runs the whole sequence again. The cache may be one of 8-bit integers.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from computekit import ComputekitError, devices
from computekit.inputs import vocabulary

from .jobs import Job
from .loading import ModelFault, blaming, first_tensor, load, prepare

if TYPE_CHECKING:
    import torch
    from torch import nn

SECONDS = 1.5
"""Generations are repeated for this long per prompt length, after one that warms up."""


def run(job: Job) -> dict[str, Any]:
    """Generate ``more["new_tokens"]`` tokens for each of ``more["prompts"]`` lengths at batch size ``more["batch"]``.

    ``more["kv_cache"]`` is the type of the KV cache: "int8", or "model" for the model's own.

    Returns ``kv_cache`` and, by prompt length, ``ttft_s`` and ``tpot_s`` of each generation, and its ``seconds``. For
    "int8" also ``int8``: what `cache_effect.measure` finds after the longest prompt.
    """
    import torch

    from . import cache_effect

    device = prepare(job)
    subject = job.subjects[0]
    module = load(subject, job).module
    size = vocabulary(module)
    if size is None:
        raise ComputekitError(f"{subject.label} is no language model: its first layer is not an embedding")
    cached = cache_argument(module)
    new_cache = _int8(module, cached, subject.label) if job.more["kv_cache"] == "int8" else None
    generator = torch.Generator().manual_seed(job.seed)
    lengths: dict[str, Any] = {}
    effect = None
    for length in job.more["prompts"]:
        prompt = torch.randint(size, (job.more["batch"], length), generator=generator).to(device)
        found: dict[str, list[float]] = {"ttft_s": [], "tpot_s": [], "seconds": []}
        with blaming(subject.label, f"generating after {length} tokens"), torch.inference_mode():
            generate(module, prompt, job.more["new_tokens"], cached, device, new_cache)
            until = time.perf_counter() + SECONDS
            while not found["seconds"] or time.perf_counter() < until:
                stamps = generate(module, prompt, job.more["new_tokens"], cached, device, new_cache)
                found["ttft_s"].append(stamps[0])
                found["seconds"].append(stamps[-1])
                if len(stamps) > 1:
                    found["tpot_s"].append((stamps[-1] - stamps[0]) / (len(stamps) - 1))
            if cached is not None and new_cache is not None and length == max(job.more["prompts"]):
                effect = cache_effect.measure(module, prompt, job.more["new_tokens"], cached, new_cache())
        lengths[str(length)] = found
    return {"kv_cache": cached is not None, "lengths": lengths, **({} if effect is None else {"int8": effect})}


def _int8(module: nn.Module, cached: str | None, label: str) -> Callable[[], Any]:
    """What makes an empty KV cache of 8-bit integers for ``module``."""
    config: Any = getattr(module, "config", None)
    if cached is None or not hasattr(config, "get_text_config"):
        raise ModelFault(label, "--kv-cache int8 needs the KV cache of a transformers model, which this model has not")
    with blaming(label, "making a KV cache of int8"):
        from computekit.models.kv_cache import int8_cache

        int8_cache(config)
    return lambda: int8_cache(config)


def generate(
    module: nn.Module,
    prompt: torch.Tensor,
    tokens: int,
    cached: str | None,
    device: torch.device,
    new_cache: Callable[[], Any] | None = None,
) -> list[float]:
    """Seconds from the start until each of ``tokens`` greedy tokens was there.

    ``prompt`` is (N, T) token ids; ``cached`` is the name of the argument that takes the KV cache, if there is one.
    ``new_cache`` makes an empty one; without it the model does.
    """
    import torch

    stamps = []
    sequence, cache = prompt, None if new_cache is None else new_cache()
    devices.synchronize(device)
    began = time.perf_counter()
    for _ in range(tokens):
        if cached is not None:
            output = module(sequence, use_cache=True, **{cached: cache})
            cache = getattr(output, cached)
        else:
            output = module(sequence)
        logits = output.logits if hasattr(output, "logits") else first_tensor(output)
        if logits is None or logits.dim() != 3:
            raise ComputekitError("the model returns no logits of shape (batch, tokens, vocabulary)")
        following = logits[:, -1:].argmax(-1)
        devices.synchronize(device)
        stamps.append(time.perf_counter() - began)
        sequence = following if cached is not None else torch.cat([sequence, following], 1)
    return stamps


def cache_argument(module: nn.Module) -> str | None:
    """Name of the argument and of the output that hold the KV cache; None if the model has none."""
    names = inspect.signature(module.forward).parameters
    if "use_cache" not in names:
        return None
    return next((name for name in ("cache", "past_key_values") if name in names), None)
