"""``computekit cost schedule``: is a spot instance worth its preemptions?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

import computekit
from computekit import ComputekitError, Price, options

from . import reliability
from .parameters import POSITIVE, InstanceName

if TYPE_CHECKING:
    from computekit.records import Row

HOUR_S = 3600.0


@dataclass(frozen=True)
class Job:
    """``work_s`` of progress on each of ``machines``; saving a checkpoint takes ``checkpoint_s`` of it."""

    work_s: float
    machines: int
    checkpoint_s: float
    restart_s: float


@dataclass(frozen=True)
class Plan:
    """What the job costs with one way of buying its machines.

    ``interval_s`` is the work between two checkpoints, ``waste`` the share of the wall time that is no progress.
    """

    name: str
    usd: float
    wall_s: float
    interval_s: float | None
    waste: float


def plan(name: str, job: Job, usd_per_hour: float, mtbf_s: float | None) -> Plan:
    """Buy all machines at one price; ``mtbf_s`` is the mean time between stops of one machine, None for never.

    Raises:
        ComputekitError: the machines stop so often that the job would not end.
    """
    if mtbf_s is None:
        return Plan(name, usd_per_hour * job.machines * job.work_s / HOUR_S, job.work_s, None, 0.0)
    together = reliability.job_mtbf(mtbf_s, job.machines)
    interval = reliability.daly_interval(job.checkpoint_s, together)
    waste = reliability.waste(interval, job.checkpoint_s, job.restart_s, together)
    if waste > 0.99:
        raise ComputekitError(
            f"{name}: {job.machines} machines stop every {together:.3g} s on average, too often to get on with "
            f"checkpoints of {job.checkpoint_s:g} s and restarts of {job.restart_s:g} s"
        )
    wall = job.work_s / (1 - waste)
    return Plan(name, usd_per_hour * job.machines * wall / HOUR_S, wall, interval, waste)


def mixed(spot: Plan, on_demand: Plan, share: float) -> Plan:
    """``share`` of the work as ``spot`` does it, the rest as ``on_demand`` does, one after the other."""
    wall = share * spot.wall_s + (1 - share) * on_demand.wall_s
    work = share * spot.wall_s * (1 - spot.waste) + (1 - share) * on_demand.wall_s * (1 - on_demand.waste)
    usd = share * spot.usd + (1 - share) * on_demand.usd
    return Plan(f"{share:.0%} spot", usd, wall, None, 1 - work / wall)


@click.command()
@click.option("--instance", required=True, type=InstanceName(), help="Instance with a spot price in the catalog.")
@click.option("--hours", type=POSITIVE, required=True, help="Time the job takes on these machines without a stop.")
@click.option(
    "--machines",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Instances that work together; one stop stops them all.",
)
@click.option(
    "--preemption-h",
    type=POSITIVE,
    required=True,
    help="Mean hours between preemptions of one spot instance; no catalog knows them, so measure yours.",
)
@click.option("--failure-h", type=POSITIVE, help="Mean hours between failures of one instance.  [default: none]")
@click.option("--checkpoint-s", type=POSITIVE, default=60.0, show_default=True, help="Seconds to save a checkpoint.")
@click.option(
    "--restart-s",
    type=options.Number(at_least=0),
    default=300.0,
    show_default=True,
    help="Seconds to get a machine back and load the checkpoint.",
)
@click.option("--spot-share", type=options.Number(above=0, below=1), help="Also a mix: this share of the work on spot.")
@options.step
def schedule(
    run: computekit.StepRun,
    instance: str,
    hours: float,
    machines: int,
    preemption_h: float,
    failure_h: float | None,
    checkpoint_s: float,
    restart_s: float,
    spot_share: float | None,
) -> None:
    """Compare on-demand and spot instances for a long job that saves checkpoints. Each gets the checkpoint interval
    that loses the least time (Daly 2006), and the cost of the work that preemptions and failures make it redo.

    \b
    Example:
      computekit cost schedule --instance gcp/a3-highgpu-8g/us-east4 --hours 200 --preemption-h 6
      computekit cost schedule --instance gcp/a2-highgpu-1g/us-central1 --hours 40 --machines 4 --preemption-h 3 \\
        --checkpoint-s 30 --spot-share 0.7
    """
    from computekit import catalog

    price = catalog.find_instance(instance)
    on_demand_price, spot_price = _both_prices(price)
    job = Job(hours * HOUR_S, machines, checkpoint_s, restart_s)
    failure_s = failure_h * HOUR_S if failure_h else None
    stop_s = HOUR_S / (1 / preemption_h + (1 / failure_h if failure_h else 0.0))
    on_demand = plan("on demand", job, on_demand_price, failure_s)
    spot = plan("spot", job, spot_price, stop_s)
    plans = [on_demand, spot]
    if spot_share is not None:
        plans.append(mixed(spot, on_demand, spot_share))
    for one in plans:
        _fill(run.row(one.name), one, on_demand)
    break_even = (1 - spot.waste) / (1 - on_demand.waste)
    run.details["price"] = {"instance": price.name, "date": price.snapshot_date, "source": price.source,
                            "on_demand_usd_per_hour": on_demand_price, "spot_usd_per_hour": spot_price}  # fmt: skip
    run.details["spot_wins_below_share_of_on_demand"] = break_even
    run.note(
        f"Spot costs {spot_price / on_demand_price:.0%} of on demand in {price.name} (seen on {price.snapshot_date}); "
        f"with these preemptions it is cheaper below {break_even:.0%}."
    )
    for doubt in catalog.doubts(price):
        run.note(f"{price.name}: {doubt}.")


def _both_prices(price: Price) -> tuple[float, float]:
    if price.on_demand_usd_per_hour is None or price.spot_usd_per_hour is None:
        missing = "spot" if price.spot_usd_per_hour is None else "on-demand"
        raise ComputekitError(f"{price.name} has no {missing} price in the catalog; a plugin can add one")
    return price.on_demand_usd_per_hour, price.spot_usd_per_hour


def _fill(row: Row, one: Plan, base: Plan) -> None:
    from computekit.records import Quantity

    interval = "work between two checkpoints, Daly 2006 equation 37"
    quantities = {
        "job_cost_usd": Quantity(value=one.usd, unit="USD", method="wall time x machines x list price"),
        "saving": Quantity(value=1 - one.usd / base.usd, unit="1", method="against on demand"),
        "wall_s": Quantity(value=one.wall_s, unit="s", method="work / (1 - waste)"),
        "waste": Quantity(value=one.waste, unit="1", method="share of the wall time that is no progress, Daly 2006"),
        "checkpoint_interval_s": Quantity(value=one.interval_s, unit="s", method=interval)
        if one.interval_s is not None
        else Quantity(value=None, unit="s", reason="nothing stops the job" if one is base else "differs by part"),
    }
    row.quantities.update(quantities)
