"""Trials of one model alone: the same job in several fresh processes."""

from __future__ import annotations

from typing import Any

from computekit import StepRun

from . import jobs, machine
from .campaign import MAX_FAILURES
from .jobs import INTERRUPTED, Job, JobFailed

TRIALS = 5


def repeat(run: StepRun, job: Job, measuring_s: float) -> tuple[list[dict[str, Any]], int]:
    """The results of `TRIALS` processes, each of which measures for about ``measuring_s``, and the exit status.

    A trial that is killed does not count, and another takes its place; Ctrl-C, and `MAX_FAILURES` lost trials in a row,
    end it with what is there. Notes and the raw results go to ``run``.

    Raises:
        JobFailed: nothing was measured: the model cannot be, or all trials died.
    """
    watch = machine.Watch()
    results: list[dict[str, Any]] = []
    status = 0
    job = job.but(device=str(run.device), threads=run.threads)
    with run.progress(TRIALS, "trials", "trial") as bar:
        number = lost = 0
        while len(results) < TRIALS and not status:
            try:
                ask = job.but(seed=run.seed * 1_000_003 + number)
                number += 1
                results.append(jobs.run(ask, measuring_s))
                lost = 0
                bar.update()
            except JobFailed as failure:
                lost += 1
                if not results and (failure.fatal or lost == MAX_FAILURES):
                    raise
                run.note(f"a trial was lost and does not count: {failure}")
                status = 1 if lost == MAX_FAILURES else 0
            except KeyboardInterrupt:
                if not results:
                    raise
                status = INTERRUPTED
    if status:
        why = "interrupted" if status == INTERRUPTED else f"{lost} trials in a row were lost"
        run.note(f"partial: {why} after {len(results)} of {TRIALS} trials")
    noise = watch.report()
    run.details["measured"] = {"machine": noise, "partial": bool(status), "trials": results}
    run.show(machine.sentence(noise))
    return results, status
