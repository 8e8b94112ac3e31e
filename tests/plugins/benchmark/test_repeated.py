"""Repeated trials of one model: which of them count, and when they end; the processes are played by functions."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import pytest

from computekit_benchmark import jobs, repeated
from computekit_benchmark.campaign import MAX_FAILURES
from computekit_benchmark.jobs import INTERRUPTED, Job, JobFailed


class Run(SimpleNamespace):
    """What `repeated.repeat` uses of a StepRun."""

    def __init__(self) -> None:
        super().__init__(device="cpu", threads=1, seed=2, details={}, notes=[], shown=[])
        self.note, self.show = self.notes.append, self.shown.append

    def progress(self, *_: object) -> contextlib.nullcontext:
        return contextlib.nullcontext(SimpleNamespace(update=lambda: None))


@pytest.fixture
def repeat(monkeypatch):
    """``repeat(answers)`` repeats a job to which each of ``answers`` is the result, or the exception, of one trial."""

    def play(answers):
        rest, seeds, run = iter(answers), [], Run()

        def answer(job, _seconds):
            seeds.append(job.seed)
            found = next(rest)
            if isinstance(found, BaseException):
                raise found
            return found

        monkeypatch.setattr(jobs, "run", answer)
        results, status = repeated.repeat(run, Job("scenario", ()), 1.0)
        assert len(set(seeds)) == len(seeds)
        return [each["n"] for each in results], status, run

    return play


KILLED = JobFailed("the measuring process was ended by SIGKILL")
RESULTS = [{"n": n} for n in range(9)]


@pytest.mark.parametrize("at", [0, 2, 4])
def test_another_trial_takes_the_place_of_one_that_was_killed(repeat, at):
    results, status, run = repeat([*RESULTS[:at], KILLED, *RESULTS[at:]])
    assert (results, status) == ([0, 1, 2, 3, 4], 0)
    assert run.notes == ["a trial was lost and does not count: the measuring process was ended by SIGKILL"]
    assert run.details["measured"]["partial"] is False


@pytest.mark.parametrize(
    ("end", "expected"), [([KILLED] * MAX_FAILURES, 1), ([KeyboardInterrupt()], INTERRUPTED)], ids=["lost", "ctrl-c"]
)
def test_what_was_measured_before_the_end_is_kept_and_marked(repeat, end, expected):
    results, status, run = repeat([*RESULTS[:2], *end])
    assert (results, status) == ([0, 1], expected)
    assert run.notes[-1].startswith("partial: ") and run.notes[-1].endswith("after 2 of 5 trials")
    assert run.details["measured"]["partial"] is True


@pytest.mark.parametrize("end", [[JobFailed("no logits", fatal=True)], [KILLED] * MAX_FAILURES, [KeyboardInterrupt()]])
def test_nothing_measured_is_an_error(repeat, end):
    with pytest.raises(type(end[0])):
        repeat(end)
