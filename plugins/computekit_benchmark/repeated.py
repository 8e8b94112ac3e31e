"""Trials of one model alone: the same job in several fresh processes."""

from __future__ import annotations

from typing import Any

from computekit import StepRun

from . import jobs, machine
from .jobs import INTERRUPTED, Job, JobFailed

TRIALS = 5


def repeat(run: StepRun, job: Job, measuring_s: float) -> tuple[list[dict[str, Any]], int]:
    """The results of `TRIALS` processes, each of which measures for about ``measuring_s``, and the exit status.

    A trial that is killed does not count; Ctrl-C keeps what is there. Notes and the raw results go to ``run``.

    Raises:
        JobFailed: the model cannot be measured, or the first trial died.
    """
    watch = machine.Watch()
    results: list[dict[str, Any]] = []
    status = 0
    job = job.but(device=str(run.device), threads=run.threads)
    with run.progress(TRIALS, "trials", "trial") as bar:
        for number in range(TRIALS):
            try:
                ask = job.but(seed=run.seed * 1_000_003 + number)
                results.append(jobs.run(ask, measuring_s))
            except JobFailed as failure:
                if failure.fatal or not results:
                    raise
                run.note(f"a trial was lost and does not count: {failure}")
            except KeyboardInterrupt:
                if not results:
                    raise
                run.note(f"partial: interrupted after {len(results)} of {TRIALS} trials")
                status = INTERRUPTED
                break
            bar.update()
    noise = watch.report()
    run.details["measured"] = {"machine": noise, "partial": bool(status), "trials": results}
    run.show(machine.sentence(noise))
    return results, status
