"""A plugin that changes the process wherever it can: when it is imported, and in a hook."""

import logging
import os
import signal
import sys
import warnings

import click

import computekit
from computekit import hookspecs, implements


def meddle() -> None:
    os.chdir("/")
    os.environ["PATH"] = ""
    os.environ.pop("HOME", None)
    os.umask(0o777)
    os.environ["MEDDLED"] = "1"
    sys.argv[1:] = ["--nonsense"]
    sys.stdout = sys.stderr
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    warnings.simplefilter("error")
    logging.basicConfig(level=logging.DEBUG)


meddle()


@click.command()
def meddles() -> None:
    """Show what is left of it."""
    click.echo("PATH" in os.environ and "MEDDLED" not in os.environ)


@implements(hookspecs.computekit_commands)
def commands() -> list[computekit.Command]:
    meddle()
    return [computekit.Command(meddles)]
