"""Time lost to failures and preemptions when a job saves checkpoints. All times in one unit, here seconds."""

from __future__ import annotations

import math


def young_interval(checkpoint: float, mtbf: float) -> float:
    """Work between two checkpoints that loses the least time, first order (Young 1974): sqrt(2 C M)."""
    return math.sqrt(2 * checkpoint * mtbf)


def daly_interval(checkpoint: float, mtbf: float) -> float:
    """Work between two checkpoints, higher order (Daly 2006, equation 37).

    sqrt(2 C M) (1 + sqrt(C / 2M) / 3 + C / 18M) - C, and M itself where C >= 2M.
    """
    if checkpoint >= 2 * mtbf:
        return mtbf
    ratio = checkpoint / (2 * mtbf)
    return math.sqrt(2 * checkpoint * mtbf) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - checkpoint


def waste(interval: float, checkpoint: float, restart: float, mtbf: float) -> float:
    """Expected share of the wall time that is no progress, with exponentially distributed failures.

    Daly 2006, equation 20: ``wall = M exp(R / M) (exp((interval + C) / M) - 1) work / interval``. It counts
    checkpoints, work that is redone, and restarts; failures may strike during each of them.
    """
    exponent = (restart + interval + checkpoint) / mtbf
    if exponent > 500:  # the job would practically never end
        return 1.0
    wall_per_work = mtbf * math.exp(restart / mtbf) * math.expm1((interval + checkpoint) / mtbf) / interval
    return 1 - 1 / wall_per_work


def job_mtbf(mtbf_of_one: float, count: int) -> float:
    """Mean time between failures of a job that stops when any of its ``count`` independent machines does."""
    return mtbf_of_one / count
