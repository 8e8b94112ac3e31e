"""Zoo."""

from .contracts import Architecture

BUILTIN: tuple[Architecture, ...] = ()
