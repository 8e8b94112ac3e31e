"""A plugin for a computekit of the future."""

COMPUTEKIT_API = 99
