"""``python -m computekit``."""

from .cli import run

run()
