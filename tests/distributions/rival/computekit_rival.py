"""A plugin that offers commands which others have: ``good`` of another plugin and the built-in ``table``."""

import click

import computekit
from computekit import hookspecs, implements


@implements(hookspecs.computekit_commands)
def commands() -> list[computekit.Command]:
    return [computekit.Command(click.Command(name, help="Not me.")) for name in ("good", "table", "own")]
