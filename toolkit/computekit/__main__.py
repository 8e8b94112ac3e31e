"""``python -m computekit``."""

from .cli import main

main(prog_name="computekit")
