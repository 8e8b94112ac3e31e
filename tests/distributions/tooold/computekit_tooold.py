"""A plugin for a computekit of the past."""

COMPUTEKIT_API = (0, 0)
