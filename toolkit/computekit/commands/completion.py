"""``computekit completion``: tab completion for a shell."""

from __future__ import annotations

import click

from .. import options


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@options.common
def completion(shell: str) -> None:
    """Print the script that gives a shell completion of commands, options and files, and of the names that plugins
    add: architectures, data sets, schemes, criteria, losses, scenarios.

    \b
    Example:
      computekit completion bash > ~/.local/share/bash-completion/completions/computekit
      computekit completion fish > ~/.config/fish/completions/computekit.fish
      echo 'eval "$(computekit completion zsh)"' >> ~/.zshrc
    """
    from click.shell_completion import get_completion_class

    from ..cli import main

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(main, {}, "computekit", "_COMPUTEKIT_COMPLETE").source())
