"""What each weight scheme keeps of a model, and in how many bytes.

    python benchmarks/quantize_weights.py --decoder FOLDER --encoder FOLDER --text held-out.txt --json rows.json

``--decoder`` and ``--encoder`` are Hugging Face folders with tokenizers. Schemes that need data are calibrated on the
training split of ``--calibration`` (Python's help topics). Fidelity is measured on the test split of ``--text``, which
should be of another kind: perplexity over that of the original model, and mean cosine of the mean-pooled embeddings to
those of the original. Bytes are those of all weight files over those of the input.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import nn

import computekit
from computekit import files
from computekit.evaluation import evaluate

SCHEMES: dict[str, list[str]] = {
    "int8": ["--int8"],
    "fp8": ["--scheme", "fp8"],
    "int4": ["--int4"],
    "int4-mse": ["--scheme", "int4-mse"],
    "int4-asym": ["--scheme", "int4-asym"],
    "hqq": ["--scheme", "hqq"],
    "awq": ["--scheme", "awq"],
    "gptq": ["--scheme", "gptq"],
    "gptq, bf16 scales": ["--scheme", "gptq", "--scales", "bf16"],
    "gptq, groups of 24, wide tables": ["--scheme", "gptq", "--group-size", "24", "--wide", "*embed*"],
    **{
        f"gptq, at most {share} of the bytes": ["--scheme", "gptq", "--scales", "bf16", "--max-bytes", share]
        for share in ("0.17", "0.18", "0.20", "0.22")
    },
    "int4-mse, at most 0.20 of the bytes": ["--scheme", "int4-mse", "--scales", "bf16", "--max-bytes", "0.20"],
    "gptq-asym": ["--scheme", "gptq-asym"],
    "awq-gptq": ["--scheme", "awq-gptq"],
    "int8, dynamic": ["--int8", "--activations", "dynamic"],
    "smoothquant, dynamic": ["--scheme", "smoothquant", "--activations", "dynamic"],
}
NEED_DATA = ("awq", "gptq", "smoothquant")
"""What the names of schemes that need data contain."""


def quantized(folder: Path, work: Path, name: str, arguments: argparse.Namespace) -> Path:
    """The folder with its weights in the scheme called ``name``."""
    output = work / f"{folder.name}-{name.replace(', ', '-')}"
    data = ["--calibration", arguments.calibration, "--calibration-samples", str(arguments.samples)]
    words = [
        *SCHEMES[name],
        *(data if any(word in name for word in NEED_DATA) else []),
        "--threads",
        str(arguments.threads),
        "-q",
    ]
    command = [sys.executable, "-m", "computekit", "quantize", *words, str(folder), "-o", str(output)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return output


def weight_bytes(folder: Path) -> int:
    return sum(files.size_bytes(path) for path in folder.glob("*.safetensors"))


def perplexity(module: nn.Module, data: computekit.Data, count: int) -> float:
    split = computekit.Split(data.test.inputs[:count], data.test.targets[:count])
    return evaluate(module, split, data.task, torch.device("cpu"), 4).value


@torch.inference_mode()
def embeddings(module: nn.Module, data: computekit.Data, count: int) -> torch.Tensor:
    """Mean-pooled last hidden states of the first windows: (windows, hidden)."""
    pooled = [module(piece).last_hidden_state.float().mean(1) for piece in torch.split(data.test.inputs[:count], 8)]
    return torch.cat(pooled)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--decoder", type=Path)
    parser.add_argument("--encoder", type=Path)
    parser.add_argument("--text", required=True, help="held-out text to measure on: a .txt file or the name of data")
    parser.add_argument("--calibration", default="pydoc")
    parser.add_argument("--samples", type=int, default=128)
    parser.add_argument("--windows", type=int, default=24, help="windows of the test split to measure on")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--schemes", nargs="*", default=list(SCHEMES), choices=SCHEMES)
    parser.add_argument("--json", type=Path, help="write the rows here")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    rows: list[dict[str, Any]] = []
    for folder in filter(None, (arguments.encoder, arguments.decoder)):
        data = computekit.load_data(arguments.text, model=folder)
        decoder = folder == arguments.decoder
        measure = perplexity if decoder else embeddings
        original = measure(computekit.load_module(folder)[0], data, arguments.windows)
        with tempfile.TemporaryDirectory() as work:
            for name in arguments.schemes:
                output = quantized(folder, Path(work), name, arguments)
                found = measure(computekit.load_module(output)[0], data, arguments.windows)
                row = {"model": folder.name, "scheme": name, "bytes_ratio": weight_bytes(output) / weight_bytes(folder)}
                if decoder:
                    row |= {"perplexity_ratio": found / original, "perplexity": found, "original": original}
                else:
                    row["cosine"] = torch.cosine_similarity(found, original, 1).mean().item()
                rows.append(row)
                print(json.dumps(row), flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
