"""Speed, size and perplexity of quantized decoders, prefill and decode apart, all candidates interleaved in one run.

    python benchmarks/quantize_llm.py FOLDER --json rows.json      # a Hugging Face folder with a tokenizer
    python benchmarks/quantize_llm.py FOLDER --quick               # few rounds, one computekit candidate

*Prefill* is one pass over 128 tokens, *decode* one step of generation after 128 tokens. Each round runs every candidate
once, in a random order; a speed-up is the median over rounds of float32's time over the candidate's own, with the
interval between order statistics. The clock is CPU time for one thread, wall time for several. Perplexity is that of
the first ``--windows`` windows of 256 tokens of the test split of ``--data``, beside its ratio to float32's. It comes
from whole windows; the way through a layer that decoding takes was more exact where it was measured (+0.3% of
perplexity instead of +0.8% for SmolLM2).
"""

from __future__ import annotations

import argparse
import copy
import random
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from quantize import Rows, quantized, spread
from quantize_peers import saved_bytes
from torch import Tensor, nn

import computekit
from computekit import evaluation, files
from computekit.statistics import quantile_interval

CONTEXT = 128
STEPS = 8
OURS: tuple[tuple[str, str], ...] = (
    ("int8 dynamic", "--int8 --activations dynamic"),
    ("int8 dynamic, bf16 around", "--int8 --activations dynamic --rest bf16"),
    ("int8 weights, bf16 around", "--int8 --rest bf16"),
    ("int4-mse", "--scheme int4-mse"),
    ("int4-mse, bf16 around", "--scheme int4-mse --rest bf16"),
    ("int4-mse, groups of 16, bf16 around", "--scheme int4-mse --group-size 16 --rest bf16"),
    ("int4-asym, bf16 around", "--scheme int4-asym --rest bf16"),
)
"""Our candidates: a name, and the words of ``computekit quantize``."""


@dataclass
class Candidate:
    name: str
    library: str
    module: nn.Module
    bytes: int
    times: dict[str, list[float]] = field(default_factory=lambda: {"prefill": [], "decode": []})


Absent = list[dict[str, Any]]
"""Who does not take part: library, name and why."""


def ours(folder: Path, work: Path, quick: bool, absent: Absent) -> list[Candidate]:
    found = []
    for i, (name, words) in enumerate(OURS[:1] if quick else OURS):
        target = work / f"ours{i}"
        try:
            size = quantized(folder, target, words.split())
        except RuntimeError as error:
            absent.append({"library": "computekit", "name": name, "why": str(error)})
            continue
        found.append(Candidate(name, "computekit", computekit.load_module(target)[0], size))
    return found


def torchao(plain: nn.Module, absent: Absent) -> list[Candidate]:
    """The library's candidates."""
    try:
        from torchao.quantization import Int8DynamicActivationInt8WeightConfig, Int8WeightOnlyConfig, quantize_
    except ImportError:
        absent.append({"library": "torchao", "why": "not installed"})
        return []
    makers: list[tuple[str, Callable[[], Any], bool]] = [
        ("int8 weights", Int8WeightOnlyConfig, False),
        ("int8 weights, bf16 around", Int8WeightOnlyConfig, True),
        ("int8 dynamic", Int8DynamicActivationInt8WeightConfig, False),
        ("int8 dynamic, bf16 around", Int8DynamicActivationInt8WeightConfig, True),
    ]
    try:
        from torchao.prototype.quantization.int4 import PrototypeInt4WeightOnlyConfig

        makers.append(("int4 prototype, bf16 around", lambda: PrototypeInt4WeightOnlyConfig(group_size=32), True))
    except ImportError as error:
        absent.append({"library": "torchao", "name": "int4 prototype", "why": str(error)})
    found = []
    for name, make, half in makers:
        module = copy.deepcopy(plain)
        try:
            quantize_(module.bfloat16() if half else module, make())
        except Exception as error:  # a prototype may fail in any way
            absent.append({"library": "torchao", "name": name, "why": f"{type(error).__name__}: {error}"})
            continue
        found.append(Candidate(name, "torchao", module, saved_bytes(module)))
    return found


def measure(module: nn.Module, ids: Tensor, clock: Callable[[], float]) -> tuple[float, float]:
    """Seconds of a pass over ``ids`` (1, T), and of one step after it."""
    start = clock()
    cache = module(ids, use_cache=True).past_key_values
    prefill = clock() - start
    token = ids[:, :1]
    module(token, past_key_values=cache)
    start = clock()
    for _ in range(STEPS):
        module(token, past_key_values=cache)
    return prefill, (clock() - start) / STEPS


def compare(
    racing: list[Candidate], test: computekit.Split, rounds: int, clock: Callable[[], float]
) -> list[dict[str, Any]]:
    """Two rows per candidate, prefill and decode; the first candidate is what all are compared with."""
    ids = test.inputs[:1, :CONTEXT]
    order = random.Random(0)
    with torch.inference_mode():
        for number in range(rounds + 1):  # the first round warms up
            for candidate in order.sample(racing, len(racing)):
                for phase, spent in zip(("prefill", "decode"), measure(candidate.module, ids, clock), strict=True):
                    if number:
                        candidate.times[phase].append(spent)
    rows = []
    perplexity = 0.0
    for candidate in racing:
        found = evaluation.evaluate(candidate.module, test, "language-modeling", torch.device("cpu"))
        perplexity = perplexity or found.value
        for phase, times in candidate.times.items():
            ratios = [base / own for base, own in zip(racing[0].times[phase], times, strict=True)]
            speedup = quantile_interval(ratios)
            rows.append(
                {"name": candidate.name, "library": candidate.library, "phase": phase, "speedup": speedup.value,
                 "interval": speedup.interval, "bytes_ratio": candidate.bytes / racing[0].bytes,
                 "metric": "perplexity", "value": found.value, "perplexity_ratio": found.value / perplexity,
                 "time_s": sorted(times)[len(times) // 2], "samples_s": times}
            )  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("decoder", type=Path, help="a Hugging Face folder with a tokenizer")
    parser.add_argument("--data", default="pydoc", help="a text, as computekit's --data takes it")
    parser.add_argument("--windows", type=int, default=12, help="windows of 256 tokens for the perplexity")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--quick", action="store_true", help="3 rounds, 3 windows, one candidate of computekit's")
    parser.add_argument("--json", type=Path, help="write the rows here")
    parser.add_argument("--append", action="store_true", help="and keep those that are there")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", FutureWarning)  # transformers renames past_key_values
    torch.manual_seed(0)
    torch.set_num_threads(arguments.threads)
    clock = ("cpu", time.process_time) if arguments.threads == 1 else ("wall", time.perf_counter)
    test = computekit.load_data(arguments.data, model=arguments.decoder).test
    count = min(3 if arguments.quick else arguments.windows, len(test))
    chosen = torch.arange(count) * len(test) // count
    test = computekit.Split(test.inputs[chosen], test.targets[chosen])
    plain = computekit.load_module(arguments.decoder)[0]
    size = files.size_bytes(arguments.decoder / "model.safetensors")
    absent: Absent = []
    with tempfile.TemporaryDirectory() as work:
        racing = [
            Candidate("fp32", "torch", plain, size),
            Candidate("bf16", "torch", copy.deepcopy(plain).bfloat16(), size // 2),
            *ours(arguments.decoder, Path(work), arguments.quick, absent),
            *([] if arguments.quick else torchao(plain, absent)),
        ]
        rows = compare(racing, test, 3 if arguments.quick else arguments.rounds, clock[1])
    about = {"model": arguments.decoder.name, "batch": 1, "tokens": CONTEXT, "threads": arguments.threads,
             "clock": clock[0]}  # fmt: skip
    for row in rows:
        print(
            f"{row['phase']:8} {row['library']:12} {row['name']:28} {row['speedup']:5.2f}x {spread(row['interval'])}  "
            f"bytes {row['bytes_ratio']:.3f}  perplexity {row['value']:.3f} (x{row['perplexity_ratio']:.4f})"
        )
    for entry in absent:
        print(f"not in it: {entry['library']} {entry.get('name', '')}: {entry['why']}")
    rows += [{"absent": True, **entry} for entry in absent]
    Rows(arguments.json, arguments.append).keep([{**about, **row} for row in rows])


if __name__ == "__main__":
    main()
