"""What Snakemake itself costs: the part of a pipeline's wall time in which no step runs.

    python benchmarks/pipeline_overhead.py                                   # config/config.yaml, 2 cores
    python benchmarks/pipeline_overhead.py --config config/text.yaml --cores 8

Runs the pipeline from nothing in a temporary folder. Snakemake notes when each job started and ended; the overhead is
the wall time of the whole command less the union of these intervals: start, planning, scheduling and shutting down.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]


def job_times(folder: Path) -> dict[str, tuple[float, float]]:
    """(start, end) in seconds since the epoch of each job that ran in ``folder``, by its log file."""
    jobs: dict[str, tuple[float, float]] = {}
    for path in (folder / ".snakemake" / "metadata").iterdir():
        metadata = json.loads(path.read_text(encoding="utf-8"))
        jobs[metadata["log"][0]] = (metadata["starttime"], metadata["endtime"])
    return jobs


def union_s(intervals: list[tuple[float, float]]) -> float:
    """Length of the union of ``intervals``."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(intervals):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, default=ROOT / "config" / "config.yaml")
    parser.add_argument("--cores", type=int, default=2)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command = [sys.executable, "-m", "snakemake", "--snakefile", str(ROOT / "Snakefile")]
        command += ["--cores", str(arguments.cores), "--configfile", str(arguments.config.resolve())]
        started = time.time()
        done = subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True)
        wall = time.time() - started
        if done.returncode != 0:
            sys.exit(done.stderr)
        jobs = job_times(folder)
    busy = union_s(list(jobs.values()))
    results = yaml.safe_load(arguments.config.read_text(encoding="utf-8")).get("results", "results")
    for log, (start, end) in sorted(jobs.items(), key=lambda item: item[1]):
        print(f"{end - start:8.1f} s  {log.removeprefix(f'{results}/logs/').removesuffix('.log')}")
    print(f"{wall:8.1f} s  wall, {len(jobs)} jobs on {arguments.cores} cores")
    print(f"{wall - busy:8.1f} s  with no job running: {(wall - busy) / wall:.1%} of the wall time")


if __name__ == "__main__":
    main()
