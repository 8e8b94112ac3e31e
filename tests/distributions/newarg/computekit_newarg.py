"""A plugin that asks for an argument which this computekit does not pass."""

import computekit


@computekit.hookimpl
def computekit_commands(theme: str) -> list[computekit.Command]:
    return []
