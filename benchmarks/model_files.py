"""Peak memory and time of rewriting a large model file, against ``cp`` of the same file, on this machine and disk.

    python benchmarks/model_files.py                     # 1 GB, every kind of file
    python benchmarks/model_files.py --gigabytes 4 --runs 3 --kinds safetensors torch

For each kind (safetensors, sharded in a folder, torch zip) a float32 model is written to a temporary folder and then,
interleaved and each in a fresh process, copied with ``cp``, copied by `computekit.models.rewrite`, rounded to int8 by
it (what ``quantize --int8`` does, without a record and hashes), and quantized by the whole command
`computekit quantize --int8`, which also starts Python, hashes input and output and writes the record. The arithmetic
alone is timed too, on a piece of a tensor that stays in the cache: the floor is twice ``cp`` plus that. Wall times
include fsync; on a busy machine compare the CPU times. Peak memory is the process's own maximum resident set; importing
torch is reported apart. The aim: at most three times the largest tensor + 300 MB.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

KINDS = ("safetensors", "folder", "torch")
ROWS, COLUMNS = 4096, 4096  # 64 MB a tensor in float32


def make(kind: str, gigabytes: float, path: Path) -> None:
    """Write a model of ``gigabytes`` with an embedding of a quarter of it, as real ones have large embeddings."""
    import torch

    from computekit.models.huggingface import FolderWriter
    from computekit.models.safetensors_files import SafetensorsWriter
    from computekit.models.torch_writer import TorchWriter

    count = max(4, round(gigabytes * 1e9 / (4 * ROWS * COLUMNS)))
    base = torch.randn(ROWS, COLUMNS)
    if kind == "folder":
        path.mkdir()
        shards = 4
        where = {}
        for shard in range(shards):
            file = path / f"model-{shard + 1:05}-of-{shards:05}.safetensors"
            with SafetensorsWriter(None, file) as writer:
                for index in range(shard, count, shards):
                    name = f"layers.{index}.weight"
                    writer.add(name, base, name)
                    where[name] = file.name
                writer.finish({})
        (path / "config.json").write_text("{}")
        (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
        return
    writer_of: dict[str, Any] = {"safetensors": SafetensorsWriter, "torch": TorchWriter, "folder": FolderWriter}
    with writer_of[kind](None, path) as writer:
        writer.add("embedding.weight", base.repeat(count // 4, 1), "embedding.weight")
        for index in range(count - count // 4):
            writer.add(f"layers.{index}.weight", base, "")
        writer.finish({})


def child(action: str, source: Path, target: Path) -> None:
    """One measured rewrite in this process; prints a line of JSON."""
    import torch

    from computekit.models import open_model, rewrite
    from computekit_quantize import schemes
    from computekit_quantize.plan import Treatment

    torch.set_num_threads(1)
    open_model_kinds()
    imported = peak_bytes()

    treatment = Treatment(schemes.INT8, None)

    def quantize(info: Any, load: Callable[[], Any]) -> Any:
        return treatment.round_stored(opened, info).store(info.name)

    begin, busy = time.perf_counter(), time.process_time()
    opened = open_model(source)
    rewrite(opened, target, quantize if action == "int8" else lambda info, load: None)
    busy = time.process_time() - busy
    subprocess.run(["sync", "-f", str(target)], check=True)
    took = time.perf_counter() - begin
    largest = max(info.nbytes for info in opened.tensors.values())
    print(json.dumps({"s": took, "cpu": busy, "peak": peak_bytes(), "imported": imported, "largest": largest}))


def open_model_kinds() -> None:
    """Import every kind of file, which the first `open_model` of a process does; that is start-up, not rewriting."""
    from computekit import host
    from computekit.models import kinds

    for kind in kinds.BUILTIN:
        kind.sniff(Path(__file__))
    assert host.current().model_formats


def peak_bytes() -> int:
    """The largest resident set of this process since its start (getrusage would include the parent's before exec)."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.split("VmHWM:")[1].split()[0])


def timed(words: list[str], target: Path) -> tuple[float, float]:
    """Wall seconds of a command that writes ``target``, until that is on the disk, and its CPU seconds."""
    begin, before = time.perf_counter(), os.times()
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    after = os.times()
    subprocess.run(["sync", "-f", str(target)], check=True)
    busy = after.children_user + after.children_system - before.children_user - before.children_system
    return time.perf_counter() - begin, busy


def remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def arithmetic(gigabytes: float) -> float:
    """Seconds of the int8 arithmetic alone on a model of this size, one thread, scaled from one piece of a tensor."""
    import torch

    from computekit.models import compressed

    torch.set_num_threads(1)
    piece = torch.randn(compressed.CHUNK // COLUMNS, COLUMNS)
    times = []
    for _ in range(100):
        begin = time.perf_counter()
        compressed.quantize(piece)
        times.append(time.perf_counter() - begin)
    return statistics.median(times) * gigabytes * 1e9 / (4 * piece.numel())


def measure(kind: str, gigabytes: float, runs: int, folder: Path) -> dict[str, Any]:
    source, target = folder / "source", folder / "target"
    make(kind, gigabytes, source)
    whole = [sys.executable, "-m", "computekit", "quantize", "--int8", str(source), "-o", str(target), "--quiet"]
    commands = {"cp": ["cp", "-r", str(source), str(target)], "command": whole}
    seconds: dict[str, list[float]] = {"cp": [], "copy": [], "int8": [], "command": []}
    busy: dict[str, list[float]] = {action: [] for action in seconds}
    memory: dict[str, dict[str, float]] = {}
    for _ in range(runs):
        for action in seconds:
            if action in commands:
                wall, cpu = timed(commands[action], target)
                seconds[action].append(wall)
                busy[action].append(cpu)
            else:
                words = [sys.executable, __file__, "--child", action, str(source), str(target)]
                found = json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
                seconds[action].append(found["s"])
                busy[action].append(found["cpu"])
                memory[action] = found
            remove(target)
    remove(source)
    return {"seconds": seconds, "busy": busy, "memory": memory}


def main() -> None:
    if len(sys.argv) > 1 and sys.argv[1] == "--child":
        child(sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4]))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--folder", help="where to put the files; a disk with three times the size free")
    options = parser.parse_args()
    if shutil.disk_usage(options.folder or tempfile.gettempdir()).free < 3e9 * options.gigabytes:
        sys.exit("not enough free disk")
    floor = arithmetic(options.gigabytes)
    print(f"{options.gigabytes:g} GB, {options.runs} runs, {os.cpu_count()} CPUs; int8 arithmetic alone {floor:.2f} s")
    for kind in options.kinds:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            found = measure(kind, options.gigabytes, options.runs, Path(folder))
        median = {action: statistics.median(times) for action, times in found["seconds"].items()}
        cpu = {action: statistics.median(times) for action, times in found["busy"].items()}
        for action, memory in found["memory"].items():
            allowed = 3 * memory["largest"] + 3e8
            bound = 2 * median["cp"] + (floor if action == "int8" else 0)
            print(
                f"{kind:<12} {action:<5} {median[action]:6.2f} s, cp {median['cp']:6.2f} s, allowed {bound:6.2f} s; "
                f"CPU {cpu[action]:.2f} s, cp {cpu['cp']:.2f} s; "
                f"peak {memory['peak'] / 1e6:5.0f} MB of which import {memory['imported'] / 1e6:.0f}, "
                f"largest tensor {memory['largest'] / 1e6:.0f}, allowed {allowed / 1e6:.0f}; "
                f"raw {[round(s, 2) for s in found['seconds'][action]]}",
                flush=True,
            )
        print(
            f"{kind:<12} whole command {median['command']:6.2f} s, allowed {2 * median['cp'] + floor:6.2f} s; "
            f"CPU {cpu['command']:.2f} s; raw {[round(s, 2) for s in found['seconds']['command']]}",
            flush=True,
        )


if __name__ == "__main__":
    main()
