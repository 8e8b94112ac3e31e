"""The command line as a person or a script meets it: help, errors, exit codes, streams, completion."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import click
import pytest
from click.testing import CliRunner

import computekit
from computekit import __version__, host
from computekit.cli import DefaultGroup, main
from computekit.loading import HEAVY

Install = Callable[..., Path]
Run = Callable[..., "subprocess.CompletedProcess[str]"]


def run(*words: str, command: click.Command | None = None) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of ``computekit WORDS``, with one more command given."""
    module = ModuleType("given")
    extra = [computekit.Command(command)] if command else []
    module.computekit_commands = computekit.hookimpl(lambda: extra)  # type: ignore[attr-defined]
    with host.using(host.Host.of(("given", module))):
        result = CliRunner().invoke(main, words, prog_name="computekit")
    return result.exit_code, result.stdout, result.stderr


def raising(error: BaseException) -> click.Command:
    def callback() -> None:
        raise error

    return click.Command("go", callback=callback)


def test_help_lists_commands_with_their_summaries() -> None:
    code, out, err = run("--help")
    assert (code, err) == (0, "")
    assert "doctor" in out
    assert "Example:\n    computekit train" in out


def test_h_is_help_everywhere() -> None:
    for words in (["-h"], ["plugins", "-h"], ["doctor", "-h"]):
        assert run(*words)[0] == 0


@pytest.mark.parametrize("name", sorted(host.Host.of().commands))
def test_every_built_in_command_has_a_paragraph_and_an_example(name: str) -> None:
    code, out, _ = run(name, "--help")
    assert code == 0
    assert "Example:\n    computekit" in out
    assert "--quiet" in out
    assert "--debug" in out


def test_version() -> None:
    assert run("--version") == (0, f"computekit, version {__version__}\n", "")


def test_no_arguments_shows_help_and_is_wrong_usage() -> None:
    group = DefaultGroup("go", default="there", commands=[click.Command("there")], help="Go somewhere.")
    for words in ((), ("go",)):
        code, out, err = run(*words, command=group)
        assert code == 2 and out == ""
        assert err.startswith("Usage: ") and "\n\nOptions:\n" in err and "Error" not in err


def test_unknown_command_suggests_the_nearest_or_a_distribution() -> None:
    assert run("docter") == (
        2, "", "Error: no such command 'docter'; did you mean doctor? (see 'computekit --help')\n",
    )  # fmt: skip
    assert "try: pip install computekit-zzz" in run("zzz")[2]


def test_unknown_option_and_bad_value_are_wrong_usage_on_one_line() -> None:
    for words in (["doctor", "--jsn"], ["completion", "tcsh"], ["completion"]):
        code, out, err = run(*words)
        assert (code, out) == (2, "")
        assert err.count("\n") == 1
        assert f"(see 'computekit {words[0]} --help')" in err


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (computekit.FileProblem("m.pt", "is\nempty"), "m.pt: is empty"),
        (click.ClickException("wrong"), "wrong"),
        (FileNotFoundError(2, "No such file or directory", "x"), "x: No such file or directory"),
        (OSError(28, "No space left on device", "x"), "x: the disk is full"),
        (KeyboardInterrupt(), "interrupted; nothing was written"),
        (click.Abort(), "interrupted; nothing was written"),
        (MemoryError(), "out of memory; use a smaller batch or model"),
        (
            ZeroDivisionError("by\nzero"),
            "internal error in plugin (given), ZeroDivisionError: by (--debug shows where; please report it)",
        ),
        (AssertionError(), "internal error in plugin (given), AssertionError (--debug shows where; please report it)"),
    ],
)
def test_whatever_a_command_raises_is_one_line_and_exit_1(error: BaseException, line: str) -> None:
    code, out, err = run("go", command=raising(error))
    assert (code, out) == (1, "")
    assert err.removeprefix("\n") == f"Error: {line}\n"  # click ends the line that the terminal shows ^C on


def test_debug_adds_the_traceback() -> None:
    _, out, err = run("--debug", "go", command=raising(ZeroDivisionError("zero")))
    assert out == ""
    assert "Traceback" in err
    assert "raise error" in err
    assert err.endswith("please report it)\n")


def test_an_error_may_have_an_exit_code_of_its_own() -> None:
    class Gate(computekit.ComputekitError):
        exit_code = 3

    assert run("go", command=raising(Gate("too slow"))) == (3, "", "Error: too slow\n")


@pytest.mark.parametrize("value", [5, True, "text"])
def test_what_a_command_returns_is_no_exit_code(value: object) -> None:
    assert run("go", command=click.Command("go", callback=lambda: value)) == (0, "", "")


def test_ctx_exit_is_an_exit_code() -> None:
    command = click.Command("go", callback=lambda: click.get_current_context().exit(4))
    assert run("go", command=command)[0] == 4


def test_unknown_name_points_to_plugins_with_problems() -> None:
    module = ModuleType("bad")
    module.computekit_datasets = computekit.hookimpl(lambda: 1)  # type: ignore[attr-defined]
    module.computekit_commands = computekit.hookimpl(  # type: ignore[attr-defined]
        lambda: [computekit.Command(raising(computekit.UnknownName("data set", "mine", host.current().datasets)))]
    )
    registry = host.Host.of(("bad", module), strict=False)
    with host.using(registry):
        result = CliRunner().invoke(main, ["go"], prog_name="computekit")
    assert "(some plugins have problems: computekit plugins)" in result.stderr


def test_quiet_is_known_to_every_command_below() -> None:
    seen = []

    @click.command()
    @computekit.options.common
    @click.pass_context
    def go(ctx: click.Context) -> None:
        seen.append(ctx.meta.get("computekit.quiet", False))

    for words in (["go"], ["--quiet", "go"], ["go", "-q"]):
        assert run(*words, command=go)[0] == 0
    assert seen == [False, True, True]


def test_default_group_runs_its_default_command() -> None:
    group = DefaultGroup("estimate", default="count")
    group.add_command(click.Command("count", params=[click.Argument(["file"])], callback=lambda file: click.echo(file)))
    group.add_command(click.Command("time", callback=lambda: click.echo("time")))
    assert run("estimate", "m.pt", command=group) == (0, "m.pt\n", "")
    assert run("estimate", "count", "m.pt", command=group) == (0, "m.pt\n", "")
    assert run("estimate", "time", command=group) == (0, "time\n", "")
    assert "Commands:" in run("estimate", "--help", command=group)[1]


def test_a_lazy_command_is_imported_when_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("late_module")
    module.late = click.Command("late", help="All of it.", callback=lambda: click.echo("late"))  # type: ignore[attr-defined]
    lazy = computekit.LazyCommand("late", "late_module:late", "Late.")
    group = DefaultGroup("early", default="now")
    group.add_command(lazy)
    group.add_command(click.Command("now", callback=lambda: click.echo("now")))
    assert "late  Late." in run("early", "--help", command=group)[1]  # late_module does not exist yet
    assert run("early", "now", command=group) == (0, "now\n", "")
    assert "  late " in run("--help", command=lazy)[1]
    missing = "Error: command 'late' cannot be loaded from late_module:late (ModuleNotFoundError: "
    for words, command in ((["late"], lazy), (["early", "late"], group)):
        code, out, err = run(*words, command=command)
        assert (code, out) == (1, "")
        assert err.startswith(missing)
        assert err.count("\n") == 1
    monkeypatch.setitem(sys.modules, "late_module", module)
    assert run("late", command=lazy) == (0, "late\n", "")
    assert run("early", "late", command=group) == (0, "late\n", "")
    assert "All of it." in run("late", "--help", command=lazy)[1]


# -- in a process of its own -------------------------------------------------------------------------------------------


def test_help_of_every_command_imports_nothing_heavy(tmp_path: Path) -> None:
    script = """if True:
        import sys
        from computekit import host
        from computekit.cli import main
        import click
        groups = [name for name, entry in host.current().commands.items() if isinstance(entry.command, click.Group)]
        names = [name for name in host.current().commands if name not in groups]
        for words in [["--help"], ["--version"], ["plugins", "--help"], *([name, "--help"] for name in names)]:
            try:
                main(words)
            except SystemExit as leaving:
                assert leaving.code == 0, words
        print("MODULES", *sorted(sys.modules))
    """
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    text, _, modules = result.stdout.rpartition("MODULES")
    assert "computekit plugins" in text
    assert set(HEAVY) & set(modules.split()) == set()


BROKEN = "import not_there"
LOUD = "print('noise')\nimport click, computekit\n"


def test_a_broken_plugin_is_listed_and_its_command_says_why(install: Install, computekit: Run) -> None:
    install("broken", BROKEN)
    shown = computekit("--help")
    assert shown.returncode == 0
    assert "Plugins not loaded:\n  broken  computekit-broken 1.0: ModuleNotFoundError" in shown.stdout
    failed = computekit("broken", "model.pt")
    assert failed.returncode == 1
    assert failed.stdout == ""
    assert failed.stderr == (
        "Error: command 'broken' is not available: plugin computekit-broken 1.0 is not loaded "
        "(ModuleNotFoundError: No module named 'not_there'); 'computekit plugins' lists what is\n"
    )
    assert computekit("--version").returncode == 0


def test_strict_shows_the_plugins_traceback(install: Install, computekit: Run) -> None:
    install("broken", BROKEN)
    result = computekit("--debug", "plugins", COMPUTEKIT_STRICT="1")
    assert result.returncode == 1
    assert "computekit_broken.py" in result.stderr
    assert "ModuleNotFoundError" in result.stderr


def test_json_stays_json_with_a_plugin_that_prints(install: Install, computekit: Run) -> None:
    install("loud", LOUD)
    listing = json.loads(computekit("plugins", "--json").stdout)
    [loud] = [p for p in listing["plugins"] if p["name"] == "loud"]
    assert loud["state"] == "loaded"
    doctor = json.loads(computekit("doctor", "--json").stdout)
    [loud] = [p for p in doctor["plugins"] if p["name"] == "loud"]
    assert "prints 6 characters when it is imported" in loud["state"]


def test_plugins_allow_shows_what_a_list_lets_in(install: Install, computekit: Run) -> None:
    install("mine", PLUGIN)
    listed = computekit("plugins", "--allow", "mine==1.0", "--json")
    assert listed.returncode == 0, listed.stderr
    states = {p["name"]: p["state"] for p in json.loads(listed.stdout)["plugins"]}
    assert (states["mine"], states["train"], states["computekit"]) == ("loaded", "not allowed", "loaded")
    missing = computekit("plugins", "--allow", "mine==2.0")
    assert missing.returncode == 1
    assert (
        missing.stderr
        == "Error: not all that is allowed is there: mine (version 2.0 is allowed, but 1.0 is installed)\n"
    )


def test_trace_prints_hook_calls(install: Install, computekit: Run) -> None:
    install("quiet-one", "")
    assert "computekit_commands" in computekit("--help", COMPUTEKIT_TRACE="1").stderr
    assert computekit("--help").stderr == ""


def test_a_closed_pipe_is_no_traceback(tmp_path: Path) -> None:
    command = f"{sys.executable} -m computekit plugins --json | head -c 1"
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=tmp_path)
    assert (result.stdout, result.stderr) == ("{", "")


@pytest.mark.parametrize(("environment", "colored"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_no_color(environment: dict[str, str], colored: bool) -> None:
    """On a terminal, errors are colored unless NO_COLOR is set."""
    ours, theirs = pty.openpty()
    env = {k: v for k, v in os.environ.items() if k != "NO_COLOR"}
    subprocess.run([sys.executable, "-m", "computekit", "zzz"], stderr=theirs, env={**env, **environment})
    os.close(theirs)
    text = os.read(ours, 10_000).decode()
    os.close(ours)
    assert "no such command" in text
    assert ("\x1b[" in text) is colored


def complete(computekit: Run, line: str) -> list[str]:
    words = line.split(" ")
    result = computekit(_COMPUTEKIT_COMPLETE="bash_complete", COMP_WORDS=line, COMP_CWORD=str(len(words) - 1))
    assert result.stderr == ""
    return [answer.partition(",")[2] for answer in result.stdout.splitlines()]


PLUGIN = """
    import click, computekit
    from computekit import options

    @click.command()
    @options.arch()
    @options.data()
    def mine(**_):
        '''Mine.'''

    @computekit.hookimpl
    def computekit_commands():
        return [computekit.Command(mine)]

    @computekit.hookimpl
    def computekit_architectures():
        return [computekit.Architecture("mine-net", "a net", None)]

    @computekit.hookimpl
    def computekit_datasets():
        return [computekit.Dataset("mine-data", "data", None)]
"""


def test_completion_of_commands_options_and_names(install: Install, computekit: Run) -> None:
    install("mine", PLUGIN)
    install("broken", BROKEN)
    assert complete(computekit, "computekit doc") == ["doctor"]
    assert complete(computekit, "computekit min") == ["mine"]
    assert complete(computekit, "computekit mine --da") == ["--data"]
    assert complete(computekit, "computekit mine --arch mine-n") == ["mine-net"]
    assert complete(computekit, "computekit mine --data mine") == ["mine-data"]
    assert complete(computekit, "computekit quantize --scheme int4-m") == ["int4-mse"]
    assert complete(computekit, "computekit benchmark scenario --scenario off") == ["offline"]
    assert complete(computekit, "computekit distill m.pt --loss k") == ["kl"]
    assert complete(computekit, "computekit broken --") in ([], complete(computekit, "computekit --"))
    assert complete(computekit, "computekit nothing --") in ([], complete(computekit, "computekit --"))


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell: str) -> None:
    code, out, err = run("completion", shell)
    assert (code, err) == (0, "")
    assert f"_COMPUTEKIT_COMPLETE={shell}_complete" in out


def test_the_bash_script_works_in_bash(install: Install, site: Path, tmp_path: Path) -> None:
    install("mine", PLUGIN)
    script = run("completion", "bash")[1]
    (tmp_path / "computekit").write_text(f'#!/bin/sh\nexec {sys.executable} -m computekit "$@"\n')
    (tmp_path / "computekit").chmod(0o755)
    program = (
        f"{script}\nCOMP_WORDS=(computekit mi); COMP_CWORD=1; _computekit_completion computekit; echo ${{COMPREPLY[@]}}"
    )
    environment = {**os.environ, "PYTHONPATH": str(site), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    result = subprocess.run(["bash", "-c", program], capture_output=True, text=True, env=environment)
    assert result.stdout.split() == ["mine"]
