"""Units of published figures: a table may give milliseconds where another gives seconds."""

from __future__ import annotations

import re

from .errors import CannotPredict


def _prefixed(words: tuple[str, ...], scale: float = 1.0) -> dict[str, float]:
    prefixes = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "p": 1e15, "e": 1e18, "z": 1e21}
    return {prefix + word: size * scale for word in words for prefix, size in prefixes.items()}


_SCALES: dict[str, dict[str, float]] = {
    "a time": {
        "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "second": 1.0, "seconds": 1.0, "min": 60.0, "minutes": 60.0,
        "h": 3600.0, "hours": 3600.0, "d": 86400.0, "day": 86400.0, "days": 86400.0,
    },
    "device time": {
        "gpu-seconds": 1.0, "gpu-hours": 3600.0, "kgpu-hours": 3.6e6, "mgpu-hours": 3.6e9, "gpu-days": 86400.0,
        "gpu-years": 365.25 * 86400.0,
    },
    "memory": {
        "bytes": 1.0, "b": 1.0, "kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12, "kib": 2.0**10, "mib": 2.0**20,
        "gib": 2.0**30, "tib": 2.0**40,
    },
    "a rate of computing": _prefixed(("flop", "flops")),
    "a rate of tokens": {"tokens": 1.0, "token": 1.0, "tok": 1.0, "toks": 1.0, "ktokens": 1e3},
    "a rate of samples": dict.fromkeys(
        ("samples", "sample", "sequences", "sequence", "seq", "seqs", "requests", "req", "images", "img"), 1.0
    ),
    "a fraction": {"fraction": 1.0, "%": 0.01, "percent": 0.01, "pct": 0.01},
    "a count": {
        "params": 1.0, "param": 1.0, "parameters": 1.0, "active": 1.0, "k": 1e3, "m": 1e6, "million": 1e6, "b": 1e9,
        "bn": 1e9, "billion": 1e9, "t": 1e12, "trillion": 1e12,
    },
    "work": {
        **_prefixed(("flop", "flops")), **_prefixed(("mac", "macs", "madds"), 2.0), "pf-days": 8.64e19,
        "pf-day": 8.64e19, "pflop-days": 8.64e19, "petaflop-days": 8.64e19,
    },
}  # fmt: skip
"""What units measure, and each in the first of its kind."""

_OWN = {
    "iter_time_s": ("a time", "s"),
    "train_days": ("a time", "days"),
    "prefill": ("a time", "ms"),
    "decode_latency_ms": ("a time", "ms"),
    "e2e_latency_ms": ("a time", "ms"),
    "train_gpu_hours": ("device time", "gpu-hours"),
    "peak_memory_gb": ("memory", "gb"),
    "checkpoint_bytes": ("memory", "bytes"),
    "tflops_per_gpu": ("a rate of computing", "tflop"),
    "tokens_per_s_per_gpu": ("a rate of tokens", "tokens"),
    "tokens_per_s": ("a rate of tokens", "tokens"),
    "prefill_tokens_per_s": ("a rate of tokens", "tokens"),
    "decode_tokens_per_s": ("a rate of tokens", "tokens"),
    "samples_per_s": ("a rate of samples", "samples"),
    "mfu": ("a fraction", "fraction"),
    "hfu": ("a fraction", "fraction"),
    "param_count": ("a count", "params"),
    "forward_flops": ("work", "flops"),
    "train_flops": ("work", "flops"),
}
"""What each kind of figure measures, and the unit that its name means."""


def factor(kind: str, unit: str) -> float:
    """What turns a ``kind`` figure in its own unit into the published ``unit``; 1 where the unit is not known.

    Raises:
        CannotPredict: the unit measures something else than figures of this kind.
    """
    text = unit.strip().lower()
    if kind == "train_gpu_hours":  # "A100 hours", "M GPU hours", "hours"
        found = re.search(r"(?:^|[\s-])(seconds|hours?|h|days?|years?)\b", text)
        large = {"k": "k", "m": "m", "million": "m"}.get(re.split(r"[\s-]", text)[0], "")
        word = f"{large}gpu-{found[1].rstrip('s') if found[1] != 'h' else 'hour'}s" if found else text
    else:
        word = re.split(r"[\s/(]", text)[0]
        word = "pf-days" if re.match(r"p(eta)?f(lop)?s?(/s)?[\s-]?days?", text) else word
    if kind not in _OWN:
        return 1.0
    measure, own = _OWN[kind]
    scales = _SCALES[measure]
    if word in scales:
        return scales[own] / scales[word]
    other = next((name for name, units in _SCALES.items() if word in units), None)
    if other is not None:
        raise CannotPredict(f"the unit {unit!r} is {other}, and {kind} is {measure}; its unit is {own}")
    return 1.0
