"""``computekit cost``: the group and its subcommands."""

from __future__ import annotations

import click

from computekit.cli import DefaultGroup

from .capacity import capacity
from .listing import instances
from .owning import own
from .price import price
from .schedule import schedule
from .sizing import size


@click.group(cls=DefaultGroup, default="price")
def cost() -> None:
    """Price models and runs: money, energy and carbon from records and dated list prices.

    ``computekit cost RECORD...`` means ``computekit cost price RECORD...``.

    \b
    Example:
      computekit cost benchmark.json --instance g5.xlarge
      computekit cost instances H100
      computekit cost schedule --instance gcp/a3-highgpu-8g/us-east4 --hours 200 --preemption-h 6
    """


for command in (price, instances, schedule, capacity, own, size):
    cost.add_command(command)
