"""When a campaign starts another trial, and what it survives; the measuring processes are played by functions."""

from __future__ import annotations

import random

import pytest

from computekit_benchmark import campaign, jobs
from computekit_benchmark.campaign import Campaign
from computekit_benchmark.jobs import Job, JobFailed, Subject

JOB = Job("trial", (Subject("a", "a.pt"), Subject("b", "b.pt")), seed=3)


def result(a: float, b: float) -> dict:
    def timed(pace):
        return {"first_call_s": 10 * pace, "warm_up_s": [pace], "visits": [[pace]] * 6}

    return {"batches": {"1": [timed(a), timed(b)]}, "failures": {}, "order": ["a", "b"]}


@pytest.fixture
def plays(monkeypatch):
    """Let ``plays(function)`` answer each job; collects the jobs."""
    asked = []

    def play(function):
        def run(job, _timeout_s):
            asked.append(job)
            return function(len(asked))

        monkeypatch.setattr(jobs, "run", run)
        return asked

    return play


def test_a_clear_difference_needs_five_trials_with_five_seeds(plays):
    asked = plays(lambda _n: result(1.0, 1.1))
    c = Campaign(JOB, [1], budget_s=60)
    c.run()
    assert len(c.trials) == 5
    assert len({job.seed for job in asked}) == 5
    assert c.comparisons(1)[0].verdict == "slower"


def test_trials_are_added_until_the_pair_is_resolved(plays):
    generator = random.Random(0)
    plays(lambda _n: result(1.0, 1.0 + generator.gauss(0, 0.03)))
    c = Campaign(JOB, [1], budget_s=3600)
    c.run()
    assert len(c.trials) > 5
    assert c.resolved


def test_the_needed_trials_run_even_when_the_budget_is_spent(plays):
    generator = random.Random(0)
    plays(lambda _n: result(1.0, generator.uniform(0.5, 1.5)))
    c = Campaign(JOB, [1], budget_s=1e-9)
    c.run()
    assert len(c.trials) == 5
    assert c.comparisons(1)[0].verdict == "unresolved"


def test_a_killed_trial_does_not_count_and_the_others_do(plays):
    def one_dies(n):
        if n == 2:
            raise JobFailed("the measuring process was ended by SIGKILL")
        return result(1.0, 1.0)

    plays(one_dies)
    c = Campaign(JOB, [1], budget_s=60)
    c.run()
    assert len(c.trials) == 5
    assert c.failures == ["the measuring process was ended by SIGKILL"]


@pytest.mark.parametrize(("fatal", "tries"), [(True, 1), (False, campaign.MAX_FAILURES)])
def test_a_model_that_cannot_run_ends_the_campaign(plays, fatal, tries):
    def dies(_n):
        raise JobFailed("a call failed", "b", fatal=fatal)

    asked = plays(dies)
    with pytest.raises(JobFailed, match="b: a call failed"):
        Campaign(JOB, [1], budget_s=60).run()
    assert len(asked) == tries


def test_a_device_that_vanishes_ends_the_campaign_and_keeps_what_was_measured(plays):
    def vanishes(n):
        if n > 3:
            raise JobFailed("a call failed with RuntimeError: no device", "b", fatal=True)
        return result(1.0, 1.0)

    asked = plays(vanishes)
    c = Campaign(JOB, [1], budget_s=60)
    c.run()
    assert len(c.trials) == 3
    assert len(asked) == 3 + campaign.MAX_FAILURES
    assert c.ended == "3 trials in a row were lost"


def test_ctrl_c_keeps_what_was_measured(plays):
    def interrupted(n):
        if n == 4:
            raise KeyboardInterrupt
        return result(1.0, 2.0)

    plays(interrupted)
    c = Campaign(JOB, [1], budget_s=60)
    c.run()
    assert c.ended == campaign.INTERRUPTION
    assert len(c.trials) == 3
    assert c.comparisons(1)[0].verdict == "unresolved"


def test_ctrl_c_before_the_first_trial_is_an_interruption(plays):
    def interrupted(_n):
        raise KeyboardInterrupt

    plays(interrupted)
    with pytest.raises(KeyboardInterrupt):
        Campaign(JOB, [1], budget_s=60).run()


def test_one_model_alone_is_timed_without_a_comparison(plays):
    def alone(_n):
        single = result(1.0, 1.0)
        single["batches"]["1"].pop()
        return single

    plays(alone)
    c = Campaign(JOB.but(subjects=JOB.subjects[:1]), [1], budget_s=60)
    c.run()
    assert len(c.trials) == 5
    assert c.comparisons(1) == []
    assert c.calls(0, 1) == [[1.0] * 6] * 5


def test_a_further_batch_size_must_fit_into_its_share_of_the_budget():
    c = Campaign(JOB, [1, 64, 256], budget_s=60)
    assert c.longest_s == [30.0, 2.0, 2.0]
    assert Campaign(JOB, [1, 64], budget_s=1).longest_s == [0.5, campaign.LEAST_LONGEST_S]
