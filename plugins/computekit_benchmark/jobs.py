"""Jobs: what a fresh process is asked to measure, and how it is started, watched and read.

Every measurement runs in a process of its own (``python -m computekit_benchmark.worker``), because two copies of one
model in one process differ by memory layout, and because peak memory never goes down inside a process.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from typing import IO, Any

from computekit import ComputekitError
from computekit.inputs import Input

STARTUP_ALLOWANCE_S = 120.0
COMPILE_ALLOWANCE_S = 600.0
"""What a process may take to import torch and load its models, and to compile them, beyond the time it measures."""


INTERRUPTED = 130
"""Exit status after Ctrl-C, as shells give it; what was measured until then is kept."""


@dataclass(frozen=True)
class Subject:
    """A model to measure: a file, or a fresh module of an architecture where ``path`` is None."""

    label: str
    path: str | None
    arch: str | None = None
    arch_args: dict[str, Any] = field(default_factory=dict)
    trust_pickle: bool = False


@dataclass(frozen=True)
class Job:
    """One measurement. ``task`` names a function of `worker.TASKS`; ``more`` are its own arguments.

    Inputs come from ``samples`` (a file of `samples.save`), else are ``inputs``, else the architecture's own.
    """

    task: str
    subjects: tuple[Subject, ...]
    device: str = "cpu"
    threads: int | None = None
    seed: int = 0
    samples: str | None = None
    inputs: tuple[Input, ...] | None = None
    compile: bool = False
    more: dict[str, Any] = field(default_factory=dict)

    def but(self, **changes: Any) -> Job:
        """A copy with some fields changed."""
        return dataclasses.replace(self, **changes)

    def to_json(self) -> str:
        return json.dumps({**dataclasses.asdict(self), "sys_path": sys.path})

    @classmethod
    def from_json(cls, text: str) -> Job:
        """The inverse of `to_json`; makes this process find the modules that the asking one found."""
        document = json.loads(text)
        sys.path[:] = document.pop("sys_path")
        document["subjects"] = tuple(Subject(**subject) for subject in document["subjects"])
        if document["inputs"] is not None:
            document["inputs"] = tuple(
                Input(**{**given, "shape": tuple(given["shape"])}) for given in document["inputs"]
            )
        return cls(**document)


class JobFailed(ComputekitError):
    """A process ended without a result: it was killed, hung, or its model raised.

    ``label`` names the model at fault where one is known; ``fatal`` says that another try would fail the same way.
    """

    def __init__(self, problem: str, label: str | None = None, fatal: bool = False) -> None:
        super().__init__(problem, label)
        self.problem, self.label, self.fatal = problem, label, fatal

    def __str__(self) -> str:
        return f"{self.label}: {self.problem}" if self.label else self.problem


def run(job: Job, measuring_s: float) -> dict[str, Any]:
    """Do ``job``, which measures for about ``measuring_s``, in a fresh process and return its result.

    Where a job that gives its result in parts fails after the first, what there is has ``cut``, which says why.

    Raises:
        JobFailed: the model raised, the process was killed, or it hangs.
    """
    label = job.subjects[0].label if len(job.subjects) == 1 else None
    timeout_s = measuring_s + STARTUP_ALLOWANCE_S + (COMPILE_ALLOWANCE_S if job.compile else 0.0)
    with (
        tempfile.TemporaryFile("w+") as asked,
        tempfile.TemporaryFile("w+") as out,
        tempfile.TemporaryFile("w+") as err,
    ):
        # files and no pipes: a process that the model started would keep a pipe open
        asked.write(job.to_json())
        asked.seek(0)
        process = subprocess.Popen(
            [sys.executable, "-m", "computekit_benchmark.worker"],
            stdin=asked,
            stdout=out,
            stderr=err,
            start_new_session=True,  # Ctrl-C is for the asking process, which then keeps what it has
        )
        late = None
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            late = JobFailed(f"no result after {timeout_s:.0f} s; the process was ended", label, fatal=True)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # the process, and all that its models started
            process.wait()
        found = _parts(_text(out))
        failure = late or _failure(process.returncode, found, _text(err), label)
    if failure is not None and not found:
        raise failure
    return found if failure is None else {**found, "cut": failure.problem}


def _text(stream: IO[str]) -> str:
    stream.seek(0)
    return stream.read()


def _parts(out: str) -> dict[str, Any]:
    """All that a process printed; the last line may be cut off."""
    found: dict[str, Any] = {}
    for line in out.splitlines():
        with contextlib.suppress(ValueError):
            found |= json.loads(line)
    return found


def _failure(status: int, found: dict[str, Any], err: str, label: str | None) -> JobFailed | None:
    """What went wrong in a process that ended with ``status``; takes an error out of what it ``found``.

    ``label`` is the model's, where the process had one alone.
    """
    if "error" in found:
        return JobFailed(found.pop("error"), found.pop("label", None), fatal=True)
    if status < 0:
        name = signal.Signals(-status).name
        cause = ", perhaps for lack of memory" if name == "SIGKILL" else ""
        return JobFailed(f"the measuring process was ended by {name}{cause}", label)
    if status or not found:
        last = (err.strip().splitlines() or ["it printed nothing"])[-1]
        return JobFailed(f"the measuring process ended with status {status}: {last}", label)
    return None
