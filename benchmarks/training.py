"""What the options of ``computekit train`` change: speed, memory and loss, all variants interleaved in one run.

    python benchmarks/training.py                        # a GPT of 24 layers, about ten minutes on two cores
    python benchmarks/training.py --depth 4 --rounds 2   # a minute

Each round trains every variant once, in a fresh process, on the same text with the same seed. A variant's speed is its
samples per second over those of fp32 in the same round: the median over rounds, with the interval between order
statistics. Peak memory is the process's own, with an allocator that gives freed memory back at once; what it differs by
between fp32 with and without ``--recompute`` stands beside what the estimator says of the activations.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from computekit import files
from computekit.statistics import quantile_interval

VARIANTS: dict[str, list[str]] = {
    "fp32": [],
    "fp32 --recompute": ["--recompute"],
    "fp32 --accumulate 4": ["--accumulate", "4"],
    "bf16": ["--precision", "bf16"],
    "fp32 --compile": ["--compile"],
    "bf16 --compile": ["--precision", "bf16", "--compile"],
}
WIDTH, HEADS, TOKENS, VOCABULARY = 128, 4, 128, 256


def computekit(*words: str) -> dict[str, Any]:
    """The record that a command prints."""
    done = subprocess.run(
        [sys.executable, "-m", "computekit", *words, "--json", "--quiet"],
        check=True, stdout=subprocess.PIPE, env={**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"},
    )  # fmt: skip
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def text(folder: Path, windows: int) -> Path:
    """The beginning of Python's own help topics, of which 80 % are trained on."""
    from pydoc_data.topics import topics

    whole = "\n\n".join(topics[name] for name in sorted(topics)).encode()
    file = folder / "text.txt"
    file.write_bytes(whole[: windows * TOKENS * 10 // 8])
    return file


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--depth", type=int, default=24)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write the rows here")
    options = parser.parse_args()
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in VARIANTS}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = text(folder, options.steps * options.batch)
        common = [
            "train", "--arch", "gpt", "--arch-args", f"depth={options.depth},dim={WIDTH},heads={HEADS}",
            "--data", str(data), "--epochs", "1", "--batch-size", str(options.batch), "--seed", "0",
            "--threads", str(options.threads), "-o", str(folder / "model.pt"),
        ]  # fmt: skip
        for number in range(options.rounds):
            for variant, words in VARIANTS.items():
                row = computekit(*common, *words)
                runs[variant].append({key: q.get("value") for key, q in row["rows"][0]["quantities"].items()})
                print(f"round {number + 1}: {variant}", file=sys.stderr)
    rows = [_row(variant, runs[variant], runs["fp32"]) for variant in VARIANTS]
    predicted = {kind: _activations(options.depth, options.batch, kind) for kind in ("none", "full")}
    for row in rows:
        low, high = row["interval"] or (float("nan"), float("nan"))
        print(
            f"{row['variant']:20} {row['speed']:5.2f}x [{low:.2f}, {high:.2f}]  "
            f"peak {row['peak_memory_bytes'] / 1e6:7.0f} MB  perplexity {row['perplexity']:.4f}"
        )
    saved = rows[0]["peak_memory_bytes"] - rows[1]["peak_memory_bytes"]
    without, again = predicted["none"] / 1e6, predicted["full"] / 1e6
    print(
        f"--recompute saves {saved / 1e6:.0f} MB; the estimator says {without:.0f} MB of activations without it and "
        f"{again:.0f} MB with it, {without - again:.0f} MB less"
    )
    if options.json:
        document = {"depth": options.depth, "batch": options.batch, "threads": options.threads, "rows": rows,
                    "estimated_activation_bytes": predicted}  # fmt: skip
        files.write_text(options.json, json.dumps(document, indent=2) + "\n")


def _row(variant: str, runs: list[dict[str, Any]], base: list[dict[str, Any]]) -> dict[str, Any]:
    ratios = [run["train_samples_per_s"] / other["train_samples_per_s"] for run, other in zip(runs, base, strict=True)]
    speed = quantile_interval(ratios)
    return {
        "variant": variant,
        "speed": speed.value,
        "interval": speed.interval,
        "ratios": ratios,
        "peak_memory_bytes": min(run["train_peak_memory_bytes"] for run in runs),
        "perplexity": runs[0]["perplexity"],
    }


def _activations(depth: int, batch: int, recompute: str) -> float:
    """What the estimator says of the bytes of activations; the device has no part in it."""
    record = computekit(
        "estimator", "train", "--layers", str(depth), "--hidden", str(WIDTH), "--heads", str(HEADS), "--seq",
        str(TOKENS), "--vocab", str(VOCABULARY), "--microbatch", str(batch), "--precision", "fp32", "--recompute",
        recompute, "--device-name", "T4",
    )  # fmt: skip
    return float(record["details"]["parts"]["memory of a rank, GB"]["activations"]) * 1e9


if __name__ == "__main__":
    main()
