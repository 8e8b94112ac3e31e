"""A plugin that asks for the other plugins while it is imported."""

from computekit import host

COMMANDS = sorted(host.current().commands)
