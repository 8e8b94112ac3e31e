"""Speed, size and fidelity of quantized encoders, all candidates interleaved in one run.

    python benchmarks/quantize.py --encoder FOLDER --json rows.json     # a BERT-like Hugging Face folder, e.g. MiniLM
    python benchmarks/quantize.py --quick                               # random weights of MiniLM's shape, few rounds

Each round runs every candidate once on the same batch of token ids; a candidate's speed-up is the median over rounds of
the float32 eager time over its own, with the interval between order statistics. Fidelity is the mean cosine of the
mean-pooled embeddings to those of float32. The clock is CPU time for one thread, wall time for several. Candidates of
libraries that are not installed are left out and named. With random weights the cosine says little: give a real model.
"""

from __future__ import annotations

import argparse
import copy
import io
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import computekit
from computekit import files
from computekit.statistics import quantile_interval

Candidate = tuple[str, str, nn.Module, float]  # name, library, module, bytes over the float32 bytes


def quantized(folder: Path, work: Path, *words: str) -> tuple[Path, float]:
    """Run ``computekit quantize`` on the folder; the output and its size ratio."""
    output = work / "-".join(("q", *(word.strip("-") for word in words)))
    command = [sys.executable, "-m", "computekit", "quantize", *words, str(folder), "-o", str(output), "-q"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return output, files.size_bytes(output / "model.safetensors") / files.size_bytes(folder / "model.safetensors")


def saved_bytes(module: nn.Module) -> int:
    """Bytes of the module's state_dict as torch saves it."""
    stream = io.BytesIO()
    torch.save(module.state_dict(), stream)
    return stream.tell()


def candidates(folder: Path, work: Path) -> list[Candidate]:
    """float32 first, which all others are compared with."""
    import transformers

    config = transformers.AutoConfig.from_pretrained(folder)

    def empty() -> nn.Module:
        return transformers.AutoModel.from_config(config)

    plain = computekit.load_into(empty(), folder)
    weights, weights_ratio = quantized(folder, work, "--int8")
    dynamic, dynamic_ratio = quantized(folder, work, "--int8", "--activations", "dynamic")
    found: list[Candidate] = [
        ("fp32 eager", "torch", plain, 1.0),
        ("bf16 eager", "torch", copy.deepcopy(plain).bfloat16(), 0.5),
        ("int8 weights", "computekit", computekit.load_into(empty(), weights), weights_ratio),
        ("int8 dynamic", "computekit", computekit.load_into(empty(), dynamic), dynamic_ratio),
        ("int8 dynamic, bf16", "computekit", computekit.load_into(empty(), dynamic).bfloat16(), dynamic_ratio),
    ]
    try:
        from torchao.quantization import Int8DynamicActivationInt8WeightConfig, Int8WeightOnlyConfig, quantize_
    except ImportError:
        print("torchao is not installed; its candidates are left out", file=sys.stderr)
        return found
    for name, make in (("int8 weights", Int8WeightOnlyConfig), ("int8 dynamic", Int8DynamicActivationInt8WeightConfig)):
        module = copy.deepcopy(plain)
        quantize_(module, make())
        found.append((name, "torchao", module, saved_bytes(module) / saved_bytes(plain)))
    return found


def embed(module: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    """Mean-pooled last hidden states: ids (batch, tokens) -> (batch, hidden)."""
    hidden: torch.Tensor = module(input_ids=ids).last_hidden_state
    return hidden.float().mean(1)


def compare(found: list[Candidate], ids: torch.Tensor, rounds: int, clock: Callable[[], float]) -> list[dict[str, Any]]:
    """One row per candidate."""
    times: list[list[float]] = [[] for _ in found]
    with torch.inference_mode():
        outputs = [embed(module, ids) for _, _, module, _ in found]
        for _ in range(rounds):
            for spent, (_, _, module, _) in zip(times, found, strict=True):
                start = clock()
                embed(module, ids)
                spent.append(clock() - start)
    rows = []
    for spent, output, (name, library, _, ratio) in zip(times, outputs, found, strict=True):
        speedup = quantile_interval([base / own for base, own in zip(times[0], spent, strict=True)])
        cosine = torch.cosine_similarity(output, outputs[0], 1).mean().item()
        rows.append(
            {"name": name, "library": library, "speedup": speedup.value, "interval": speedup.interval,
             "bytes_ratio": ratio, "cosine": cosine, "time_s": sorted(spent)[len(spent) // 2]}
        )  # fmt: skip
    return rows


def real_ids(folder: Path, batch: int, tokens: int, vocabulary: int) -> torch.Tensor:
    """Token ids of Python's own documentation where the folder has a tokenizer, else uniformly random ones."""
    if not (folder / "tokenizer.json").exists():
        return torch.randint(vocabulary, (batch, tokens), generator=torch.Generator().manual_seed(0))
    import pydoc_data.topics

    import transformers

    texts = [text for text in pydoc_data.topics.topics.values() if len(text) > 8 * tokens][:batch]
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    return tokenizer(texts, truncation=True, max_length=tokens, padding="max_length", return_tensors="pt").input_ids


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encoder", type=Path, help="a Hugging Face folder; default: random weights of MiniLM's shape")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--quick", action="store_true", help="batch 8, 6 rounds")
    parser.add_argument("--json", type=Path, help="write the rows here")
    arguments = parser.parse_args()
    batch, rounds = (8, 6) if arguments.quick else (arguments.batch, arguments.rounds)
    torch.manual_seed(0)
    torch.set_num_threads(arguments.threads)
    clock = ("cpu", time.process_time) if arguments.threads == 1 else ("wall", time.perf_counter)
    with tempfile.TemporaryDirectory() as work:
        folder = arguments.encoder or Path(work) / "encoder"
        if arguments.encoder is None:
            import transformers

            shape = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
            transformers.BertModel(transformers.BertConfig(**shape)).save_pretrained(folder)
        found = candidates(folder, Path(work))
        ids = real_ids(folder, batch, arguments.tokens, found[0][2].get_input_embeddings().num_embeddings)
        rows = compare(found, ids, rounds, clock[1])
    about = {"model": folder.name, "batch": batch, "tokens": arguments.tokens, "threads": arguments.threads,
             "clock": clock[0]}  # fmt: skip
    rows = [{**about, **row} for row in rows]
    print(f"{folder.name}, batch {batch} x {arguments.tokens} tokens, {arguments.threads} threads, {clock[0]} time")
    for row in rows:
        low, high = row["interval"] or (float("nan"), float("nan"))
        print(
            f"{row['library']:12} {row['name']:20} {row['speedup']:5.2f}x [{low:.2f}, {high:.2f}]  "
            f"bytes {row['bytes_ratio']:.3f}  cosine {row['cosine']:.5f}"
        )
    if arguments.json:
        files.write_text(arguments.json, json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
