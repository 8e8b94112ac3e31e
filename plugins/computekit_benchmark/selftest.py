"""Does the trial rule hold on this machine? A model against itself, and against itself with 5 % more FLOPs."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from computekit import devices, statistics
from computekit.inputs import Input

from . import machine
from .campaign import Campaign
from .jobs import Job, Subject
from .workloads import DEPTH, WORKLOADS, Workload

PAIR_BUDGET_S = 60.0


def try_pair(
    workload: Workload, budget_s: float, *, clock: str, device: str, threads: int | None, seed: int
) -> dict[str, Any]:
    """One campaign of the rule with three models: A, a copy of A, and A with 5 % more layers.

    Returns the two comparisons with A as ``same_model`` and ``five_percent``, and the seconds it took.
    """
    subjects = tuple(
        Subject(label, None, workload.arch, {"depth": depth})
        for label, depth in (("a", DEPTH), ("a again", DEPTH), ("a + 5 %", DEPTH * 21 // 20))
    )
    job = Job("trial", subjects, device, threads, seed, inputs=(Input(workload.input_shape),))
    campaign = Campaign(job, [workload.batch], budget_s, clock=clock)
    began = time.monotonic()
    campaign.run()
    same_model, five_percent = campaign.comparisons(workload.batch)
    return {
        "workload": workload.name,
        "seed": seed,
        "seconds": round(time.monotonic() - began, 1),
        "lost_trials": len(campaign.failures),
        "interrupted": campaign.ended is not None,
        "same_model": same_model.as_dict(),
        "five_percent": five_percent.as_dict(),
    }


def run(
    time_budget_s: float,
    *,
    clock: str = "wall",
    device: str = "auto",
    threads: int | None = None,
    seed: int = 0,
    quiet: bool = False,
    after_pair: Callable[[dict[str, Any]], None] = lambda _pair: None,
    max_pairs: int | None = None,
    first: int = 0,
) -> dict[str, Any]:
    """Test workload after workload, in rounds, until the time is spent or ``max_pairs`` are done; returns `report`.

    ``after_pair`` sees each result of `try_pair`. Pair number ``first`` is the first; its number chooses the workload.
    Ctrl-C ends it and keeps what was measured.
    """
    from tqdm import tqdm

    name = str(devices.resolve(device))
    watch = machine.Watch()
    deadline = time.monotonic() + time_budget_s
    budget = min(PAIR_BUDGET_S, time_budget_s / len(WORKLOADS))
    pairs: list[dict[str, Any]] = []
    with tqdm(desc="pairs", unit="pair", file=sys.stderr, disable=quiet or not sys.stderr.isatty()) as bar:
        while max_pairs is None or len(pairs) < max_pairs:
            workload = WORKLOADS[(first + len(pairs)) % len(WORKLOADS)]
            try:
                pair = try_pair(workload, budget, clock=clock, device=name, threads=threads, seed=seed + len(pairs))
            except KeyboardInterrupt:
                if not pairs:
                    raise
                break
            if pair["interrupted"]:
                break
            pairs.append(pair)
            after_pair(pair)
            bar.update()
            if time.monotonic() > deadline:
                break
    return report(pairs) | {"machine": watch.report()}


def report(pairs: list[dict[str, Any]]) -> dict[str, Any]:
    """False verdicts on a model against itself, and the share of 5 % differences that were found: all, and by kind."""
    kinds = dict.fromkeys(pair["workload"] for pair in pairs)
    return {
        **_rates(pairs),
        "workloads": [{"name": kind} | _rates([p for p in pairs if p["workload"] == kind]) for kind in kinds],
    }


def _rates(pairs: list[dict[str, Any]]) -> dict[str, Any]:
    false = sum(pair["same_model"]["verdict"] in ("faster", "slower") for pair in pairs)
    found = sum(pair["five_percent"]["verdict"] == "slower" for pair in pairs)
    return {
        "pairs": len(pairs),
        "false_verdicts": false,
        "false_verdict_rate_interval": statistics.wilson(false, len(pairs)).interval if pairs else None,
        "unresolved": sum(pair["same_model"]["verdict"] == "unresolved" for pair in pairs),
        "power_5pct": found / len(pairs) if pairs else None,
        "power_5pct_interval": statistics.wilson(found, len(pairs)).interval if pairs else None,
        "wrong_direction": sum(pair["five_percent"]["verdict"] == "faster" for pair in pairs),
        "median_ratio_5pct": statistics.quantile([p["five_percent"]["ratio"] for p in pairs], 0.5) if pairs else None,
        "trials": sum(pair["same_model"]["trials"] for pair in pairs),
        "seconds": sum(pair["seconds"] for pair in pairs),
    }


def describe(report: dict[str, Any]) -> str:
    """The report as a table and a sentence."""
    from tabulate import tabulate

    keys = ("pairs", "false_verdicts", "unresolved", "power_5pct", "median_ratio_5pct", "trials", "seconds")
    titles = ["workload", "pairs", "false verdicts", "unresolved", "power at 5 %", "ratio at 5 %", "trials", "seconds"]
    rows = [[entry["name"], *(entry[key] for key in keys)] for entry in report["workloads"]]
    rows.append(["all", *(report[key] for key in keys)])
    return "\n".join([tabulate(rows, titles, floatfmt=".3g"), "", machine.sentence(report["machine"])])
