"""A plugin with a hook that raises, and one that works: ``computekit still-there``."""

import click

import computekit
from computekit import hookspecs, implements


@implements(hookspecs.computekit_datasets)
def datasets() -> list[computekit.Dataset]:
    raise RuntimeError("the disk with the data is not mounted")


@implements(hookspecs.computekit_commands)
def commands() -> list[computekit.Command]:
    return [computekit.Command(click.Command("still-there", help="Still there."))]
