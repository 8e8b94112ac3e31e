"""A plugin that works: ``computekit good``."""

import click

import computekit
from computekit import hookspecs, implements


@click.command()
def good() -> None:
    """Say good."""
    click.echo("good")


@implements(hookspecs.computekit_commands)
def commands() -> list[computekit.Command]:
    return [computekit.Command(good)]
