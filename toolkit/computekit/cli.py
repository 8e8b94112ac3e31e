"""The root command: loads plugins, lists their commands, and turns every error into one line. Wiring only."""

from __future__ import annotations

import atexit
import contextlib
import errno
import io
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import click

from . import __version__, host, loading, options
from .errors import ComputekitError, PluginNotLoaded, UnknownName, nearest
from .verbs import loaded

_SUMMARY = 160  # characters; longer first sentences are cut in lists of commands, shorter ones wrapped


class DefaultGroup(click.Group):
    """A group in which ``computekit GROUP FILE...`` means ``computekit GROUP DEFAULT FILE...``.

    Its subcommands may be `LazyCommand` ones.
    """

    def __init__(self, *args: Any, default: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.default = default

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        command = super().get_command(ctx, cmd_name)
        return loaded(command) if command else None

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in self.get_help_option_names(ctx):
            args = [self.default, *args]
        return super().parse_args(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [(name, self.commands[name].get_short_help_str(_SUMMARY)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


class RootGroup(click.Group):
    """Lists what the plugins of the current host provide."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(host.current().commands)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        registry = host.current()
        if cmd_name in registry.commands:
            return loaded(registry.commands[cmd_name].command)
        for failure in [*registry.skipped, *registry.failures]:
            if failure.name == cmd_name and not failure.loaded and not ctx.resilient_parsing:
                raise PluginNotLoaded(cmd_name, failure.distribution, failure.version, failure.reason)
        return None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if not args[0].startswith("-") and self.get_command(ctx, args[0]) is None and not ctx.resilient_parsing:
            near = nearest(args[0], self.list_commands(ctx))
            hint = f"did you mean {' or '.join(near)}?" if near else f"try: pip install computekit-{args[0]}"
            absent = [failure.name for failure in [*host.current().skipped, *host.current().failures]]
            if absent and not near:
                hint = (
                    f"it may be one of a plugin that is not loaded or has problems ({', '.join(absent[:5])}"
                    + (", ...)" if len(absent) > 5 else ")")
                    + "; see 'computekit plugins'"
                )
            raise click.UsageError(f"no such command {args[0]!r}; {hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        registry = host.current()
        step_words = {step.argv[0] for step in registry.steps.values()}
        sections: dict[str, list[tuple[str, str]]] = {
            "Steps": [], "Commands": [], "Plugins not loaded": [], "Plugins with problems": [],
        }  # fmt: skip
        for name, entry in registry.commands.items():
            section = "Steps" if name in step_words else "Commands"
            sections[section].append((name, entry.command.get_short_help_str(limit=_SUMMARY)))
        for failure in registry.failures:
            section = "Plugins with problems" if failure.loaded else "Plugins not loaded"
            origin = f"{failure.distribution} {failure.version}".rstrip()
            sections[section].append((failure.name, f"{origin}: {failure.reason}"))
        for title, rows in sections.items():
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)

    def invoke(self, ctx: click.Context) -> None:
        """Run the command; what its function returns is no exit code. An error notes whose command it was."""
        try:
            super().invoke(ctx)
        except (KeyboardInterrupt, click.Abort):
            raise
        except BaseException as error:
            registry = host.current()
            owner = registry.owner(registry.commands.get(ctx.invoked_subcommand or ""))
            if owner is not None and not owner.first_party:
                error.add_note(f"in plugin {owner.distribution} {owner.version}".rstrip())
            else:
                _blame(error, registry)
            raise

    def main(self, args: Sequence[str] | None = None, *rest: Any, **extra: Any) -> Any:
        """Run, and exit with 0, with an error's own code (1 unless it says otherwise), or with 2 for wrong usage."""
        extra["standalone_mode"] = False
        words = list(args) if args is not None else sys.argv[1:]
        try:
            result = super().main(words, *rest, **extra)
            sys.stdout.flush()
        except SystemExit:
            raise
        except BaseException as error:  # a plugin may raise anything
            sys.exit(_report(error, "--debug" in words))
        sys.exit(result if isinstance(result, int) else 0)


def _report(error: BaseException, debug: bool) -> int:
    """Print one line about ``error`` to standard error and return the exit code."""
    if debug:
        import traceback

        traceback.print_exception(error)
    if isinstance(error, BrokenPipeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        error.show()
        return error.exit_code
    line = _one_line(error)
    if isinstance(error, click.UsageError) and error.ctx:
        line += f" (see '{error.ctx.command_path} --help')"
    if isinstance(error, UnknownName) and host.current().failures:
        line += " (some plugins have problems: computekit plugins)"
    click.echo(click.style("Error:", fg="red") + f" {line}", err=True, color=_color())
    return error.exit_code if isinstance(error, (ComputekitError, click.ClickException)) else 1


def _blame(error: BaseException, registry: host.Host) -> None:
    """Note whose scheme, data set, ... an error of a command of ours is from, or may be from.

    Raises ComputekitError in the place of a plugin's sys.exit, which would end the command without a word.
    """
    names = set[str]()
    frame = error.__traceback__
    while frame is not None:
        names.add(str(frame.tb_frame.f_globals.get("__name__", "")).partition(".")[0])
        frame = frame.tb_next
    strangers = [plugin for plugin in registry.plugins if not plugin.first_party]
    inside = [p for p in strangers if getattr(p.plugin, "__name__", "").partition(".")[0] in names]
    for plugin in inside or [p for p in strangers if p.name in registry.taking_part]:
        origin = f"plugin {plugin.distribution} {plugin.version}".rstrip()
        if inside and isinstance(error, SystemExit):
            raise ComputekitError(f"{origin} called sys.exit({error.code!r})") from error
        error.add_note(f"{'in' if inside else 'with'} {origin}")


def _one_line(error: BaseException) -> str:
    if isinstance(error, (KeyboardInterrupt, click.Abort)):
        return f"interrupted{_where(error.__cause__ or error)}; nothing was written"
    if isinstance(error, click.ClickException):
        return " ".join(error.format_message().split())
    if isinstance(error, ComputekitError):
        return " ".join(str(error).split())
    if isinstance(error, OSError) and error.errno is not None:
        reason = "the disk is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else error.strerror
        return f"{error.filename}: {reason}" if error.filename else str(reason)
    if isinstance(error, MemoryError):
        return "out of memory; use a smaller batch or model"
    if type(error).__name__ == "OutOfMemoryError":
        text = (str(error).splitlines() or [""])[0]
        return f"the device is out of memory; use a smaller --batch-size ({text})"
    return f"internal error{_where(error)}, {loading.describe(error)} (--debug shows where; please report it)"


def _where(error: BaseException) -> str:
    """The plugin that an error noted as its place."""
    return "".join(
        f" {note}" for note in getattr(error, "__notes__", ()) if note.startswith(("in plugin ", "with plugin "))
    )


def _color() -> bool | None:
    """Never with NO_COLOR (https://no-color.org), else as the terminal allows."""
    return False if os.environ.get("NO_COLOR") else None


def run() -> NoReturn:
    """The program: `main`, and an end that no plugin can spoil.

    What plugins print at exit goes to standard error, and a thread that one left running when it was imported is not
    waited for.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # names in files may hold what the terminal's encoding lacks
            stream.reconfigure(errors="backslashreplace")
    try:
        main(prog_name="computekit")
    except SystemExit as end:
        with contextlib.suppress(OSError, ValueError):  # closed
            sys.stdout.flush()
            os.dup2(2, 1)
        containment = sys.modules.get(f"{__package__}.containment")
        if containment is None or not any(thread.is_alive() for thread in containment.lingering):
            raise
        atexit._run_exitfuncs()
        sys.stderr.flush()
        os._exit(end.code if isinstance(end.code, int) else 1)
    raise AssertionError("main always ends the process")


@click.group(cls=RootGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, "--version", prog_name="computekit")
@options.common
@click.pass_context
def main(ctx: click.Context) -> None:
    """Train, compress, benchmark and price models; every step leaves a record, and tables compare the records.

    \b
    Example:
      computekit train --arch resnet --data digits -o model.pt
      computekit quantize --int8 model.pt
      computekit benchmark models model.pt model-int8.pt
    """
    ctx.color = _color()
