"""What --qat-epochs is worth: 4-bit models with and without it, beside as many more epochs of ordinary training.

    python benchmarks/quantize_qat.py [--arch gpt --data pydoc --epochs 1 --qat-epochs 1 --seeds 3] [--json FILE]

For each seed one model is trained; then the test metric of: the floats; those in 4 bits; in 4 bits after QAT; and in 4
bits after the same epochs of training in floats, at the same learning rate. Without the last, what more training does
would pass for what QAT does.
"""

from __future__ import annotations

import argparse
import copy
import json
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn

import computekit
from computekit import evaluation, training, zoo
from computekit.models import build, open_model
from computekit_quantize import plan, qat
from computekit_quantize.workbench import Workbench

CPU = torch.device("cpu")


def trial(arch: str, data: computekit.Data, asked: argparse.Namespace, seed: int) -> dict[str, float]:
    """The test metric of the four models of one seed."""
    torch.manual_seed(seed)
    reference = zoo.for_data(arch, json.loads(asked.arch_args), data)
    module = build(reference)
    training.fit(module, data, training.Recipe(epochs=asked.epochs), device=CPU, seed=seed)
    more = training.Recipe(epochs=asked.qat_epochs, lr=asked.qat_lr, warmup=0.0)
    request = plan.Request(asked.scheme, asked.group_size)

    def metric(of: nn.Module) -> float:
        return evaluation.evaluate(of, data.test, data.task, CPU).value

    def in_bits(of: nn.Module, rounding_in_training: bool | None) -> float:
        of = copy.deepcopy(of)
        with TemporaryDirectory() as folder:
            path = Path(folder) / "m.pt"
            computekit.save_module(of, path, reference)
            source = open_model(path)
            bench = Workbench(of, source, plan.make(source, request))
            if rounding_in_training is not None:
                with qat.rounding(bench) if rounding_in_training else nullcontext():
                    training.fit(of, data, more, device=CPU, seed=seed)
            with bench.treated({d: d.treatment for d in bench.quantized}):
                return metric(of)

    return {
        "float": metric(module),
        "quantized": in_bits(module, None),
        "more training, quantized": in_bits(module, False),
        "QAT": in_bits(module, True),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", default="gpt")
    parser.add_argument("--arch-args", default="{}", help="JSON")
    parser.add_argument("--data", default="pydoc")
    parser.add_argument("--scheme", default="int4")
    parser.add_argument("--group-size", type=int)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--qat-epochs", type=int, default=1)
    parser.add_argument("--qat-lr", type=float, default=3e-4)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    data = computekit.load_data(asked.data)
    rows: list[Mapping[str, Any]] = []
    for seed in range(asked.seeds):
        row = {"seed": seed, **trial(asked.arch, data, asked, seed)}
        rows.append(row)
        print("  ".join(f"{key} {value:.5g}" for key, value in row.items()), flush=True)
    if asked.json:
        asked.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
