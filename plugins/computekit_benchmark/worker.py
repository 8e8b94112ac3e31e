"""The measuring process: reads one `Job` from standard input, does it, and prints the result as JSON.

A task may yield its result in parts. Each is a line, written at once, so that a part outlives what follows it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

from computekit import ComputekitError

from . import device, generation, isolated, loadgen, numerics, roofline, system, timing
from .jobs import Job
from .loading import ModelFault

TASKS: dict[str, Callable[[Job], dict[str, Any] | Iterator[dict[str, Any]]]] = {
    "trial": timing.trial,
    "isolated": isolated.examine,
    "device": device.measure,
    "scenario": system.run,
    "loadgen": loadgen.run,
    "generate": generation.run,
    "numerics": numerics.run,
    "roofline": roofline.run,
}


def main() -> None:
    """Run the job; what models print goes to standard error, so that only the result is on standard output."""
    results = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    job = Job.from_json(sys.stdin.read())
    try:
        found = TASKS[job.task](job)
        for part in [found] if isinstance(found, dict) else found:
            print(json.dumps(part), file=results, flush=True)
    except ModelFault as fault:
        print(json.dumps({"error": fault.problem, "label": fault.label}), file=results)
    except ComputekitError as error:
        print(json.dumps({"error": str(error)}), file=results)
    results.close()
    sys.stderr.flush()
    os._exit(0)  # threads that a model left running would keep the process alive


if __name__ == "__main__":
    main()
