"""A plugin with a typing mistake in the name of a hook."""

import computekit


@computekit.hookimpl
def computekit_comands() -> list[computekit.Command]:
    return []
