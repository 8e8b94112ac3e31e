"""What a plugin does to the process while it is imported, or in a hook, is caught, undone and named."""

from __future__ import annotations

import json
import locale
import logging
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from computekit.containment import OwnInterrupt, contained, lingering
from computekit.host import Host

Install = Callable[..., Path]
Run = Callable[..., "subprocess.CompletedProcess[str]"]


def state() -> tuple[object, ...]:
    return (
        Path.cwd(), dict(os.environ), list(sys.argv), sys.stdin, sys.stderr, sys.excepthook,
        signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM), locale.setlocale(locale.LC_ALL),
        list(warnings.filters), logging.getLogger().level, list(logging.getLogger().handlers),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("meddle", "effect"),
    [
        (lambda: os.chdir("/"), "changes the working folder"),
        (lambda: os.environ.update(PATH="", NEW_ONE="1"), "changes environment variables NEW_ONE, PATH"),
        (lambda: os.environ.pop("PATH"), "changes environment variables PATH"),
        (lambda: sys.argv.append("--more"), "changes sys.argv"),
        (lambda: setattr(sys, "argv", ["other"]), "changes sys.argv"),
        (lambda: setattr(sys, "stderr", None), "changes sys.stdin, stdout or stderr"),
        (lambda: delattr(sys, "stdout"), "changes sys.stdin, stdout or stderr"),
        (lambda: setattr(sys, "excepthook", print), "changes sys.excepthook"),
        (lambda: signal.signal(signal.SIGINT, signal.SIG_IGN), "changes signal handlers SIGINT"),
        (lambda: signal.signal(signal.SIGTERM, lambda *_: None), "changes signal handlers SIGTERM"),
        (lambda: locale.setlocale(locale.LC_NUMERIC, "C.UTF-8"), "changes the locale"),
        (lambda: warnings.simplefilter("error"), "changes warning filters"),
        (lambda: logging.getLogger().addHandler(logging.NullHandler()), "changes the root logger"),
        (lambda: logging.getLogger().setLevel(logging.DEBUG), "changes the root logger"),
        (lambda: os.umask(0o123), "changes the umask"),
        (lambda: sys.stderr.write(""), "writes to standard error"),
        (lambda: None, ""),
    ],
)
@pytest.mark.parametrize("fails", [False, True])
def test_the_process_is_as_before_and_the_change_is_named(
    meddle: Callable[[], object], effect: str, fails: bool
) -> None:
    before = state()
    umask = os.umask(0o077)
    os.umask(umask)
    try:
        with contained() as containment:
            meddle()
            if fails:
                raise RuntimeError("on top of it")
    except RuntimeError:
        assert fails
    assert state() == before
    assert containment.effects == ([effect] if effect else [])
    assert os.umask(umask) == umask
    with warnings.catch_warnings(record=True) as caught:
        warnings.warn("still a warning", UserWarning, stacklevel=1)
    assert caught or not effect.endswith("filters")


def test_standard_output_is_caught_on_every_level(capfd: pytest.CaptureFixture[str]) -> None:
    with contained() as containment:
        print("python")
        os.write(1, b"raw\n")
        subprocess.run([sys.executable, "-S", "-c", "print('child')"], check=True)
    print("after")
    assert capfd.readouterr() == ("after\n", "")
    assert containment.printed == "python\nraw\nchild\n"


def test_closing_standard_output_is_no_harm(capfd: pytest.CaptureFixture[str]) -> None:
    with contained():
        sys.stdout.close()
        os.close(1)
    print("after")
    os.write(1, b"too\n")
    assert sorted(capfd.readouterr().out.split()) == ["after", "too"]


def test_a_keyboard_interrupt_of_ones_own_is_an_error_like_others() -> None:
    with pytest.raises(OwnInterrupt, match="it raised KeyboardInterrupt"), contained():
        raise KeyboardInterrupt


@pytest.mark.parametrize("error", [None, RuntimeError, SystemExit])
def test_ctrl_c_ends_the_program_whatever_the_plugin_makes_of_it(error: type[BaseException] | None) -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), contained():
        try:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(10)
        except BaseException:
            if error is not None:
                raise error from None
    assert signal.getsignal(signal.SIGINT) == before


def test_it_works_in_a_thread() -> None:
    seen: list[str] = []

    def work() -> None:
        with contained() as containment:
            print("in a thread")
        seen.append(containment.printed)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == ["in a thread\n"]


def test_threads_that_go_on_are_named() -> None:
    done = threading.Event()
    with contained() as containment:
        threading.Thread(target=done.wait, daemon=True).start()
        threading.Thread(target=done.wait).start()
    done.set()
    assert containment.effects == ["leaves a thread running"]
    lingering.pop().join()


def test_a_hook_is_contained_too(install: Install, on_path: Path) -> None:
    install(
        "meddler",
        """
        import os, computekit

        @computekit.hookimpl
        def computekit_columns():
            os.chdir("/")
            return []

        @computekit.hookimpl
        def computekit_datasets():
            raise KeyboardInterrupt

        @computekit.hookimpl
        def computekit_addhooks(manager):
            os.environ["MEDDLED"] = "1"
        """,
    )
    before = state()
    registry = Host.discover()
    registry.call_hooks()
    assert state() == before
    assert {(loaded.name, effect) for loaded, effect in registry.effects} == {
        ("meddler", "in computekit_addhooks, it changes environment variables MEDDLED"),
        ("meddler", "in computekit_columns, it changes the working folder"),
    }
    assert [f.reason for f in registry.failures] == ["computekit_datasets failed: it raised KeyboardInterrupt"]


SLEEPS = """
    import sys, time
    open("importing", "w").close()
    try:
        time.sleep(60)
    except BaseException:
        pass
"""


def test_the_users_ctrl_c_while_a_plugin_is_imported(install: Install, site: Path, tmp_path: Path) -> None:
    install("sleeps", SLEEPS)
    environment = {**os.environ, "PYTHONPATH": str(site)}
    process = subprocess.Popen(
        [sys.executable, "-m", "computekit", "--help"], cwd=tmp_path, env=environment,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    while not (tmp_path / "importing").exists():
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    line = "Error: interrupted in plugin computekit-sleeps 1.0; nothing was written"
    assert (process.returncode, out, err.strip()) == (1, "", line)


def test_last_words_and_threads_of_a_plugin_do_not_spoil_output(install: Install, computekit: Run) -> None:
    install("lingers", "import threading, time\nthreading.Thread(target=time.sleep, args=(3600,)).start()")
    install("parting", "import atexit\natexit.register(print, 'bye')\natexit.register(lambda: 1 / 0)")
    ended = computekit("plugins", "--json")
    assert ended.returncode == 0
    reasons = {plugin["name"]: plugin["reason"] for plugin in json.loads(ended.stdout)["plugins"]}
    assert reasons["lingers"] == "when imported, it leaves a thread running"
    assert reasons["parting"] == "when imported, it registers an exit handler"
    assert "bye\n" in ended.stderr
    assert "ZeroDivisionError" in ended.stderr
    assert computekit("no-such-command").returncode == 2


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import not_there_at_all", "internal error in plugin computekit-bad 1.0, ModuleNotFoundError"),
        ("raise SystemExit(0)", "plugin computekit-bad 1.0: it called sys.exit(0)"),
        ("raise GeneratorExit", "plugin computekit-bad 1.0: GeneratorExit"),
        ("raise KeyboardInterrupt", "plugin computekit-bad 1.0: it raised KeyboardInterrupt"),
        ("COMPUTEKIT_API = 99", "plugin computekit-bad 1.0: needs a newer computekit"),
    ],
)
def test_strict_names_the_plugin(code: str, message: str, install: Install, computekit: Run) -> None:
    install("bad", code)
    ended = computekit("--help", COMPUTEKIT_STRICT="1")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.startswith(f"Error: {message}")
    assert ended.stderr.count("\n") == 1
