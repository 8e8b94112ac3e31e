"""CPU time of ``computekit --help``, against the least that a program with click, pluggy and plugins can need.

    python benchmarks/startup.py                 # this installation
    python benchmarks/startup.py --plugins 10 100   # and with that many third-party plugins more

Start-up is what a person waits for at every command and what a pipeline pays for every job. The floor is a Python
that imports click and pluggy and reads the entry points; the aim is to stay under 1.5 times that. CPU time is that of
the child process, user and system, the median of interleaved runs.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

FLOOR = "import click, pluggy, importlib.metadata; importlib.metadata.entry_points()"
PLUGIN = '''
import click

import computekit
from computekit import options


@click.command()
@options.model
@options.step
def {name}(run, model):
    """One of many."""


@computekit.hookimpl
def computekit_steps():
    return [computekit.Step("{name}", {name}, takes="model", gives="model")]
'''


def cpu_ms(command: list[str], path: str = "") -> float:
    """User and system time of one run of ``command``, in milliseconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True, env={**os.environ, "PYTHONPATH": path})
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1e3 * (after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)


def write_plugins(folder: Path, count: int) -> None:
    """``count`` installed distributions, each with one step."""
    for i in range(count):
        name = f"many{i}"
        (folder / f"computekit_{name}.py").write_text(PLUGIN.format(name=name), encoding="utf-8")
        info = folder / f"computekit_{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: computekit-{name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[computekit]\n{name} = computekit_{name}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plugins", type=int, nargs="*", default=[], help="numbers of extra plugins to try")
    parser.add_argument("--runs", type=int, default=15)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        paths = {"computekit --help": ""}
        for count in arguments.plugins:
            folder = Path(temporary) / str(count)
            folder.mkdir()
            write_plugins(folder, count)
            paths[f"computekit --help, {count} more plugins"] = str(folder)
        help_command = [sys.executable, "-m", "computekit", "--help"]
        samples: dict[str, list[float]] = {"floor": [], **{label: [] for label in paths}}
        for _ in range(arguments.runs + 1):
            samples["floor"].append(cpu_ms([sys.executable, "-c", FLOOR]))
            for label, path in paths.items():
                samples[label].append(cpu_ms(help_command, path))
        medians = {label: statistics.median(values[1:]) for label, values in samples.items()}  # the first one warms up
    for label, value in medians.items():
        more = value - medians["computekit --help"]
        note = "" if label == "floor" else f"  {value / medians['floor']:.2f} x floor"
        print(f"{value:8.1f} ms CPU  {label}{note}" + (f"  {more:+.1f} ms" if "more" in label else ""))


if __name__ == "__main__":
    main()
