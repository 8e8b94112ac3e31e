"""``computekit benchmark generate``: the figures of generation, by prompt length."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from computekit import StepRun, files, records, statistics
from computekit.statistics import Estimate

from . import latency
from .jobs import Job
from .repeated import repeat
from .rows import put, put_unknown, significant

TIMEOUT_S = 1800.0
_KEYS = ("ttft_s", "tpot_s", "prompt_tokens_per_s", "output_tokens_per_s")


def measure_generation(run: StepRun, model: Path, job: Job) -> int:
    """Fill ``run`` with a row about the first prompt length and a table of all; returns the exit status."""
    from tabulate import tabulate

    row = run.row(job.subjects[0].label, sha256=files.sha256(run.input(model)))
    trials, status = repeat(run, job, TIMEOUT_S)
    if not trials[0]["kv_cache"]:
        run.note(f"{row.label} offers no KV cache: every token runs the whole sequence again")
    by_length = {length: _figures(job, trials, length) for length in job.more["prompts"]}
    for key, estimate in by_length[job.more["prompts"][0]].items():
        unit = "s" if key.endswith("_s") and "per" not in key else "1/s"
        if estimate is None:
            put_unknown(row, key, unit, "one new token has no token after the first; give more --new-tokens")
        else:
            put(row, key, estimate, unit)
    if "int8" in trials[0]:
        _put_effect(run, row, job, trials)
    lines = [
        [length, *(estimate.value if (estimate := found[key]) else None for key in _KEYS)]
        for length, found in by_length.items()
    ]
    headers = ["prompt", "first token (s)", "per token (s)", "prompt tokens/s", "output tokens/s"]
    run.show(tabulate(lines, headers, floatfmt=".4g"))
    for note in run.notes:
        run.say(note)
    return status


def _put_effect(run: StepRun, row: records.Row, job: Job, trials: list[dict[str, Any]]) -> None:
    """Bytes of the KV cache in both types, and what int8 does to the predictions: of all trials' tokens together."""
    effects = [trial["int8"] for trial in trials]
    size, plain = effects[0]["bytes"], effects[0]["model_bytes"]
    kind = effects[0]["model_type"]
    count = sum(effect["tokens"] for effect in effects)
    same = sum(effect["same"] for effect in effects)
    finite = [effect for effect in effects if effect["kl_nats"] is not None]
    known = len(finite) == len(effects)
    kl = significant(sum(effect["kl_nats"] for effect in finite) / count) if known else None
    largest = significant(max(effect["largest_logit_difference"] for effect in finite)) if known else None

    prompt, new_tokens = max(job.more["prompts"]), job.more["new_tokens"]
    held = f"batch size {job.more['batch']}, {prompt + new_tokens - 1} tokens, counted from its tensors"
    after = f"{count} predictions after {prompt} random tokens and up to {new_tokens - 1} greedy ones"
    against = f"int8 against the model's own cache, which chose the tokens for both; {after}"
    for key, value, unit, method in (
        ("kv_cache_bytes", size, "B", f"KV cache in int8, {held}"),
        ("kv_cache_model_bytes", plain, "B", f"KV cache in {kind}, in which the model runs, {held}"),
        ("kv_cache_agreement", significant(same / count), "", f"share of equal greedy choices, {against}"),
        ("kv_cache_kl_nats", kl, "nat", f"mean KL divergence of the predictions, {against}"),
        ("kv_cache_logit_difference", largest, "", f"largest of all logits, {against}"),
    ):
        if value is None:
            put_unknown(row, key, unit, "not all logits are finite")
        else:
            row.quantities[key] = records.Quantity(value=value, unit=unit, how="measured", method=method)
    run.show(
        f"KV cache: {size:,} B in int8, {plain:,} B in {kind} ({size / plain:.3f}); "
        f"{same} of {count} greedy choices equal"
        + ("" if kl is None else f", KL {kl:.2g} nats, largest difference of a logit {largest:.2g}")
    )


def _figures(job: Job, trials: list[dict[str, Any]], length: int) -> dict[str, Estimate | None]:
    """Geometric means over trials; each trial gives the median of its generations."""
    batch, new_tokens = job.more["batch"], job.more["new_tokens"]

    def of(key: str) -> list[float]:
        values = [trial["lengths"][str(length)][key] for trial in trials]
        return [statistics.quantile(v, 0.5) for v in values if v]

    what = f"batch size {batch}, {length} prompt tokens, {new_tokens} new"
    return {
        "ttft_s": latency.over_trials(of("ttft_s"), what),
        "tpot_s": latency.over_trials(of("tpot_s"), what) if of("tpot_s") else None,
        "prompt_tokens_per_s": latency.over_trials([batch * length / s for s in of("ttft_s")], what),
        "output_tokens_per_s": latency.over_trials([batch * new_tokens / s for s in of("seconds")], what),
    }
