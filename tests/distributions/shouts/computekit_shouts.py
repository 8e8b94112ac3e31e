"""A plugin that writes past sys.stdout: to the file descriptor, and through a child process."""

import os
import subprocess
import sys

import click

import computekit
from computekit import hookspecs, implements


def shout() -> None:
    os.write(1, b"{ raw\n")
    subprocess.run([sys.executable, "-S", "-c", "print('{ child')"], check=True)
    sys.__stdout__.write("{ late")


shout()


@implements(hookspecs.computekit_commands)
def commands() -> list[computekit.Command]:
    shout()
    return [computekit.Command(click.Command("shouts", help="Shout."))]
