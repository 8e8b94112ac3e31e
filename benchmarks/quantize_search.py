"""How good the search of ``computekit quantize --max-drop`` is: the bytes that it needs, beside two other ways.

    python benchmarks/quantize_search.py MODEL --data DATA --scheme int4 --max-drop 1 [--metric cosine] [--json FILE]

All three judge sets of layers by the same metric on the same samples, and go on until the bound is met:

* search: what computekit does, see ``computekit_quantize.search``;
* leave out: the k layers that are most harmful alone stay in floats, for the smallest k that bisection finds;
* one at a time: layers are ranked by what the metric gains when each alone goes back to floats in the quantized model,
  and go back in that order, one at a time. This is how NNCF's quantize_with_accuracy_control works.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
import torch

import computekit
from computekit.models import open_model
from computekit_quantize import metric, plan, search, sensitivity
from computekit_quantize.clock import Deadline
from computekit_quantize.workbench import Workbench


class Judge:
    """The drop of the model with some weights left in floats; counts how often it was asked."""

    def __init__(self, bench: Workbench, measured: metric.Metric) -> None:
        self.bench, self.metric, self.asked = bench, measured, 0
        self.before = measured.score(bench.module, "validation")

    def __call__(self, left_out: Sequence[plan.Decision]) -> float:
        self.asked += 1
        with self.bench.treated({d: d.treatment for d in self.bench.quantized if d not in left_out}) as module:
            return sensitivity.judge(self.metric, self.before, module, None, "the model").drop

    def alone(self, decision: plan.Decision) -> float:
        """The drop with one weight quantized and no other."""
        return self([d for d in self.bench.quantized if d != decision])


def leave_out(judge: Judge, bound: float) -> list[plan.Decision]:
    harmful = sorted(judge.bench.quantized, key=lambda decision: -judge.alone(decision))
    low, high = -1, len(harmful)
    while high - low > 1:
        middle = (low + high) // 2
        if judge(harmful[:middle]) <= bound:
            high = middle
        else:
            low = middle
    return harmful[:high]


def one_at_a_time(judge: Judge, bound: float) -> list[plan.Decision]:
    order = sorted(judge.bench.quantized, key=lambda decision: judge([decision]))
    count = 0
    while judge(order[:count]) > bound:
        count += 1
    return order[:count]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--data", required=True)
    parser.add_argument("--scheme", default="int4")
    parser.add_argument("--metric")
    parser.add_argument("--max-drop", type=float, required=True)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()

    torch.set_num_threads(1)
    module, _, _ = computekit.load_module(asked.model)
    source, data = open_model(asked.model), computekit.load_data(asked.data)
    device = torch.device("cpu")
    measured = metric.make(asked.metric, None, data, device, asked.batch_size, module)
    decisions = plan.make(source, plan.Request(asked.scheme))
    float_bytes = sum(d.info.nbytes for d in decisions)
    rows: list[dict[str, Any]] = []

    def report(name: str, chosen: dict[str, int], drop: float, asked_for: int) -> None:
        total = sum(chosen.get(d.info.name, d.info.nbytes) for d in decisions)
        rows.append({"name": name, "bytes_ratio": total / float_bytes, "drop": drop, "evaluations": asked_for})
        lost = f"drop {drop:.3g} {measured.unit}"
        print(f"{name:16} {total / float_bytes:.4f} of the bytes, {lost}, {asked_for} evaluations")

    ways: dict[str, Callable[[Judge, float], list[plan.Decision]]] = {
        "leave out": leave_out,
        "one at a time": one_at_a_time,
    }
    for name, way in ways.items():
        judge = Judge(Workbench(module, source, decisions), measured)
        left_out = way(judge, asked.max_drop)
        chosen = {d.info.name: d.bytes_after for d in judge.bench.quantized if d not in left_out}
        report(name, chosen, judge(left_out), judge.asked - 1)

    with click.Context(click.Command("search")) as context:
        run = computekit.StepRun(context, None, 0, "cpu", 1, None, False)
        bench = Workbench(module, source, decisions)
        before = measured.score(module, "validation")
        found = search.Search(run, measured, bench, before, asked.max_drop, "bytes", Deadline(None))
        best = found.go()
        chosen = {d.info.name: t.bytes_of(d.info) for d, t in best.choice.items() if t is not None}
        report("search", chosen, best.drop, len(best.tried) + len(found.ranked or []))
    if asked.json:
        asked.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
