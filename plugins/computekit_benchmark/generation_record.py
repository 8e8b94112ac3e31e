"""``computekit benchmark generate``: the figures of generation, by prompt length."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from computekit import StepRun, files, statistics
from computekit.statistics import Estimate

from . import latency
from .jobs import Job
from .repeated import repeat
from .rows import put, put_unknown

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
    lines = [
        [length, *(estimate.value if (estimate := found[key]) else None for key in _KEYS)]
        for length, found in by_length.items()
    ]
    headers = ["prompt", "first token (s)", "per token (s)", "prompt tokens/s", "output tokens/s"]
    run.show(tabulate(lines, headers, floatfmt=".4g"))
    for note in run.notes:
        run.say(note)
    return status


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
