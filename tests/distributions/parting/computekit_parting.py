"""A plugin with last words, and with a mistake in them."""

import atexit


def fail() -> None:
    raise RuntimeError("last words")


atexit.register(fail)
atexit.register(print, "{ bye")
