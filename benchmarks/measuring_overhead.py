"""What measuring costs: the throughput that ``computekit benchmark`` reports, over that of a bare loop.

    python benchmarks/measuring_overhead.py               # a minute and a half

Each trial is a fresh process that measures a model by turns in both ways: with the timer of ``benchmark models``, which
reads the clock at every call and checks the time between visits, and in a loop that does nothing but call the model,
with the clock read before and after all of it. Printed are the median ratio of each trial, as a geometric mean over
trials with Student's t interval: 1.00 is no overhead, and the aim is to be within 1 % of it.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import random
import subprocess
import sys
import time

from computekit import statistics
from computekit_benchmark import latency, timing
from computekit_benchmark.workloads import WORKLOADS, Workload

SPAN_S = 0.25
TURNS = 8


def log_ratio(workload: Workload) -> float:
    """log(reported throughput / bare throughput): the median of `TURNS` pairs of spans of about `SPAN_S` seconds."""
    import torch

    from computekit.models import ArchRef, build

    module = build(ArchRef(workload.arch, {})).eval()
    inputs = torch.randn(workload.batch, *workload.input_shape)

    runner = timing.Runner(workload.name, functools.partial(module, inputs))
    timing.warm_up(runner, torch.device("cpu"), SPAN_S, math.inf, "")
    timer = timing.make_timer("wall", torch.device("cpu"))
    calls = max(1, round(SPAN_S / runner.pace_s))
    chance = random.Random(0)

    def reported() -> float:
        runner.visits.clear()
        timing.interleave([runner], SPAN_S, timer, chance)
        return latency.throughput([[second for visit in runner.visits for second in visit]], workload.batch).value

    def bare() -> float:
        began = time.perf_counter()
        for _ in range(calls):
            module(inputs)
        return workload.batch * calls / (time.perf_counter() - began)

    differences = []
    for turn in range(TURNS):
        order = (reported, bare) if turn % 2 == 0 else (bare, reported)
        rates = {way: way() for way in order}
        differences.append(math.log(rates[reported] / rates[bare]))
    return statistics.quantile(differences, 0.5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=5)
    parser.add_argument("--one-trial", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one_trial:
        import torch

        torch.set_num_threads(1)
        with torch.inference_mode():
            print(json.dumps({workload.name: log_ratio(workload) for workload in WORKLOADS}))
        return
    trials = [
        json.loads(subprocess.run([sys.executable, __file__, "--one-trial"], check=True, stdout=subprocess.PIPE).stdout)
        for _ in range(options.trials)
    ]
    for workload in WORKLOADS:
        ratio = statistics.mean_interval([trial[workload.name] for trial in trials]).through(math.exp)
        low, high = ratio.interval or (math.nan, math.nan)
        print(f"{workload.name:14} reported / bare throughput {ratio.value:.4f} [{low:.4f}, {high:.4f}]")


if __name__ == "__main__":
    main()
