"""Type docs/plugins/tutorial.md: write its files, run its commands, and say how long that took.

    python scripts/tutorial.py FOLDER

Runs in FOLDER with the computekit, pip, pytest and snakemake of the Python that runs this. Stops at the first command
that fails.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

PAGE = Path(__file__).resolve().parents[1] / "docs" / "plugins" / "tutorial.md"
BLOCK = re.compile(r"^```(\w+)(?: file=(\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def actions(text: str) -> list[tuple[str, str]]:
    """What a reader does, in order: ("write PATH", content) and ("run", command)."""
    found = []
    for language, path, content in BLOCK.findall(text):
        if path:
            found.append((f"write {path}", content))
        elif language == "console":
            found += [("run", line.removeprefix("$ ")) for line in content.splitlines() if line.startswith("$ ")]
    return found


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    total = 0.0
    for what, content in actions(PAGE.read_text(encoding="utf-8")):
        if what != "run":
            path = folder / what.removeprefix("write ")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content, encoding="utf-8")
            print(what, flush=True)
            continue
        command = re.sub(r"^(pip|pytest|snakemake|computekit)\b", rf"{sys.executable} -m \1", content)
        start = time.perf_counter()
        done = subprocess.run(command, shell=True, cwd=folder, env=environment)
        took = time.perf_counter() - start
        total += took
        print(f"{took:6.1f} s  {content}", flush=True)
        if done.returncode != 0:
            sys.exit(f"failed with exit code {done.returncode}")
    print(f"{total:6.1f} s  all commands")


if __name__ == "__main__":
    main()
