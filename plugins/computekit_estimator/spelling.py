"""How published tables spell things: kinds of figures, precisions, recomputation, sharding."""

from __future__ import annotations

import re

from .errors import CannotPredict
from .layout import Recompute, Sharding

_PER = r"_per_s(ec(ond)?)?"
_EACH = r"_per_(gpu|device|chip|accelerator)"
_KINDS: tuple[tuple[str, str], ...] = (
    (r"prefill(_throughput|_tok(en)?s?" + _PER + r")", "prefill_tokens_per_s"),
    (r"(ttft|prefill|(time_to_)?first_token|context)(_latency|_time)?", "prefill"),
    (r"(decode|generation|tg)(_throughput|_tok(en)?s?" + _PER + r")", "decode_tokens_per_s"),
    (r"(tpot|itl|inter_token|time_per_output_token|per_token|decode(_step)?|generation_step)(_latency|_time)?",
     "decode_latency_ms"),
    (r"(e2e|end_to_end|request|infer(ence)?(_step)?|generate)(_latency|_time)?", "e2e_latency_ms"),
    (r"(train_)?tok(en)?s?" + _PER + _EACH + r"|tgs|wps", "tokens_per_s_per_gpu"),
    (r"model_flops?_utili[sz]ation", "mfu"),
    (r"(hardware|hw)_flops?_utili[sz]ation", "hfu"),
    (r"(train_|output_|total_|throughput_)?tok(en)?s?(" + _PER + r"|_s)|throughput", "tokens_per_s"),
    (r"(train_|infer(ence)?_)?(sample|sequence|seq|request|image|img)s?" + _PER + r"(" + _EACH + r")?",
     "samples_per_s"),
    (r"(train_)?(iter(ation)?|step)(_time|_duration)?|(sec(ond)?s?|time)_per_(it|iter|iteration|step)", "iter_time_s"),
    (r"(model_|hardware_|hw_|achieved_)?t(era)?flops?(_per_s)?(" + _EACH + r")?", "tflops_per_gpu"),
    (r"(train(ing)?_|pretrain_)?(gpu|device|chip|accelerator)_(h|hours?|days?|years?)", "train_gpu_hours"),
    (r"(train(ing)?_|total_)(time|days|hours)|wall_?clock(_time)?", "train_days"),
    (r"(peak_|max_|gpu_)*mem(ory)?(_usage|_reserved|_allocated)?(_per_gpu)?", "peak_memory_gb"),
    (r"(num_|n_|total_|active_)?param(eter)?s?(_count)?", "param_count"),
    (r"(forward_|fwd_)(flops?|macs)|g?macs|gflops?", "forward_flops"),
    (r"(train(ing)?_|total_)(flops?|compute)", "train_flops"),
)  # fmt: skip
"""Spellings of a kind, as a pattern, and the name that the shipped table has for it."""


def kind(text: str, known: tuple[str, ...]) -> str:
    """The kind of figure that a cell means; as it is if it is ``known`` or nothing like it is."""
    if text in known:
        return text
    word = re.sub(r"[\s/.-]+", "_", re.sub(r"\s*\(.*?\)", "", text).strip().lower())
    without_unit = re.sub(r"_(m?s|us|seconds|min|gb|gib|mb|bytes|pct|percent)$", "", word)
    for name in (word, without_unit):
        if name in known:
            return name
        for pattern, means in _KINDS:
            if re.fullmatch(pattern, name) and not re.search(r"_per_(m?s|us)$", text):
                return means
    return next((means for pattern, means in _KINDS if re.fullmatch(pattern, word)), text)


def yes(text: str) -> bool:
    """Whether a cell that is yes or no (1, 0, true, false, on, off; empty is no) says yes."""
    return text.strip().lower() not in ("", "0", "0.0", "no", "none", "false", "off", "n")


_PRECISIONS = (
    (r"(mx|nv)?fp8.*|float8.*|e4m3.*|te_?fp8.*", "fp8"),
    (r"nvfp4.*|mxfp4.*|fp4.*|float4.*", "fp4"),
    (r"bf16.*|bfloat16.*|mixed.*|amp", "bf16"),
    (r"fp16.*|float16.*|half|f16|16_mixed", "fp16"),
    (r"tf32.*", "tf32"),
    (r"fp32.*|float32.*|f32|single", "fp32"),
)


def precision(text: str) -> str:
    """The precision of training products that a cell such as ``amp_bf16``, ``BF16-mixed`` or ``FP8 (E4M3)`` means."""
    word = re.sub(r"[\s()-]+", "_", text.strip().lower()).removeprefix("amp_").strip("_")
    return next((name for pattern, name in _PRECISIONS if re.fullmatch(pattern, word)), word)


_FORMATS = (
    (r"w8a8|smoothquant.*|int8_sq", "w8a8"),
    (r"int8.*|w8a16.*|i8|8bit", "int8"),
    (r"(w4a16|awq|gptq|marlin|int4_awq).*", "int4g128"),
    (r"int4(_?g(32|64|128))", r"int4g\2"),
    (r"int4.*|w4.*|4bit", "int4"),
    (r"i?q\d(_\w+)*", ""),
    (r"nf4.*", "nf4"),
)


def weight_format(text: str) -> str:
    """The format of served weights that a cell means; GGUF's names (``q4_k_m``) stay what they are."""
    word = re.sub(r"[\s()-]+", "_", text.strip().lower()).strip("_")
    for pattern, name in _FORMATS:
        found = re.fullmatch(pattern, word)
        if found:
            return found.expand(name) if name else word
    return precision(text)


def recompute(text: str) -> Recompute:
    """What a cell says is computed again in the backward pass.

    Raises:
        CannotPredict: a word that is not known.
    """
    word = re.sub(r"[\s_-]+", "", text.strip().lower())
    if word in ("", "none", "no", "false", "0", "off", "disabled"):
        return "none"
    if word in ("full", "yes", "true", "1", "on", "all", "uniform", "block", "everylayer", "fullrecompute"):
        return "full"
    if word in ("selective(op)", "operators", "sac", "selectiveac"):
        return "operators"
    if word in ("selective(layer)", "selectivelayer", "selective(2)", "layers", "everysecondlayer", "everyotherlayer"):
        return "layers"
    if word.startswith(("selective", "attention", "coreattn", "core")):
        return "selective"
    raise CannotPredict(f"recompute {text!r} is not modelled; known: none, selective, operators, layers, full")


def sharding(text: str) -> Sharding:
    """The stage of ZeRO that a cell such as ``zero3(fsdp)``, ``ZeRO-1``, ``dist-opt`` or ``fsdp2`` means.

    Raises:
        CannotPredict: a word that is not known.
    """
    word = re.sub(r"[\s_-]+", "", text.strip().lower()).replace("stage", "")
    stages: tuple[Sharding, ...] = ("zero1", "zero2", "zero3")
    for stage in stages:
        if word.startswith(stage) or word == stage[-1]:
            return stage
    if any(name in word for name in ("fsdp", "fullshard", "fullysharded", "hsdp")):
        return "zero3"
    if any(name in word for name in ("distopt", "distributedopt", "shardedopt")):
        return "zero1"
    if word in ("", "none", "no", "ddp", "dp", "0", "zero0", "false"):
        return "none"
    raise CannotPredict(f"sharding {text!r} is not modelled; known: none, {', '.join(stages)}, fsdp")
