"""Finding and importing plugins: every way in which a plugin can be broken stays its own problem."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from computekit import host, loading
from computekit.host import Host
from computekit.loading import Policy, parse_allowed

Install = Callable[..., Path]

GOOD = """
    import click, computekit

    @click.command()
    def good() -> None:
        '''Do good.'''

    @computekit.hookimpl
    def computekit_commands():
        return [computekit.Command(good)]
"""

BROKEN = {
    "missing-import": ("import not_there_at_all", "ModuleNotFoundError: No module named 'not_there_at_all'"),
    "syntax": ("def broken(:", "SyntaxError"),
    "exit": ("import sys; sys.exit(3)", "it called sys.exit(3)"),
    "base-exception": ("class Odd(BaseException): pass\nraise Odd('odd')", "Odd: odd"),
    "interrupt": ("raise KeyboardInterrupt", "it raised KeyboardInterrupt"),
    "generator-exit": ("raise GeneratorExit", "GeneratorExit"),
    "stop-iteration": ("raise StopIteration", "StopIteration"),
    "cancelled": ("import asyncio; raise asyncio.CancelledError", "CancelledError"),
    "recursion": ("def f(): f()\nf()", "RecursionError: maximum recursion depth exceeded"),
    "impatient": (
        "from computekit import host; host.current()",
        "it asks for other plugins while it is being imported",
    ),
    "too-new": ("COMPUTEKIT_API = 99", "needs a newer computekit: plugin API 99"),
    "too-old": ("COMPUTEKIT_API = (0, 0)", "is too old for this computekit: it supports plugin API up to 0"),
    "odd-api": ("COMPUTEKIT_API = '1'", "COMPUTEKIT_API is '1'; it must be a number"),
    "mistyped-hook": (
        "import computekit\n@computekit.hookimpl\ndef computekit_comands(): return []",
        "unknown hook 'computekit_comands', did you mean 'computekit_commands'?",
    ),
    "unknown-hook": (
        "import computekit\n@computekit.hookimpl\ndef nothing_like_it(): return []",
        "known: computekit_addhooks, computekit_architectures",
    ),
    "unknown-argument": (
        "import computekit\n@computekit.hookimpl\ndef computekit_commands(theme): return []",
        "needs a newer computekit: computekit_commands has no argument 'theme' here (it has: none)",
    ),
    "wrapper": (
        "import computekit\n@computekit.hookimpl(wrapper=True)\ndef computekit_steps(): return (yield)",
        "computekit_steps is written as a wrapper, but a plugin sees only what it contributes itself",
    ),
    "old-wrapper": (
        "import computekit\n@computekit.hookimpl(hookwrapper=True)\ndef computekit_steps(): yield",
        "computekit_steps is written as a wrapper",
    ),
    "bad-addhooks": (
        "import computekit\n@computekit.hookimpl\ndef computekit_addhooks(manager): manager.add_hookspecs(object())",
        "did not find any 'computekit' hooks",
    ),
}


def failures(registry: Host) -> dict[str, str]:
    return {failure.name: failure.reason for failure in registry.failures}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_plugin_stops_no_other(
    kind: str, install: Install, on_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, reason = BROKEN[kind]
    install(kind, "")
    (on_path / f"computekit_{kind.replace('-', '_')}.py").write_text(code)
    install("good", GOOD)
    monkeypatch.setattr(host, "_current", None)
    registry = host.current()
    assert "good" in registry.commands
    assert list(failures(registry)) == [kind]
    assert reason in failures(registry)[kind]
    assert not registry.failures[0].loaded
    assert kind not in {loaded.name for loaded in registry.plugins}
    assert (registry.failures[0].distribution, registry.failures[0].version) == (f"computekit-{kind}", "1.0")


def test_strict_raises_the_plugins_own_error(install: Install, on_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install("broken", "import not_there_at_all")
    monkeypatch.setenv("COMPUTEKIT_STRICT", "1")
    with pytest.raises(ModuleNotFoundError, match="not_there_at_all"):
        Host.discover()


def test_a_missing_attribute_of_the_entry_point(install: Install, on_path: Path) -> None:
    install("typo", "", entry="computekit_typo:Plugni")
    assert "no attribute 'Plugni'" in failures(Host.discover())["typo"]


def test_an_object_can_be_the_plugin(install: Install, on_path: Path) -> None:
    install("object", GOOD.replace("computekit_commands():", "computekit_commands(): return []\nif 0:"))
    (on_path / "computekit_object.py").write_text(
        "import click, computekit\n"
        "class Plugin:\n"
        "    @computekit.hookimpl\n"
        "    def computekit_commands(self):\n"
        "        return [computekit.Command(click.Command('from-object', help='x'))]\n"
        "plugin = Plugin()\n"
    )
    (on_path / "computekit_object-1.0.dist-info" / "entry_points.txt").write_text(
        "[computekit]\nobject = computekit_object:plugin\n"
    )
    registry = Host.discover()
    assert "from-object" in registry.commands
    [loaded] = [p for p in registry.plugins if p.name == "object"]
    assert loading.source_folder(loaded.plugin) == on_path / "computekit_object.py"


def test_the_same_entry_point_name_twice_names_both(install: Install, on_path: Path) -> None:
    install("good", GOOD)
    install("other", "raise RuntimeError('never imported')")
    (on_path / "computekit_other-1.0.dist-info" / "entry_points.txt").write_text("[computekit]\ngood=computekit_other")
    registry = Host.discover()
    [failure] = registry.failures
    assert failure.reason == "the plugin name 'good' is taken by computekit-good 1.0"
    assert failure.distribution == "computekit-other"
    assert "computekit_other" not in sys.modules


def test_a_third_party_cannot_take_a_first_party_name(install: Install, on_path: Path) -> None:
    install("evil", GOOD)
    (on_path / "computekit_evil-1.0.dist-info" / "entry_points.txt").write_text(
        "[computekit]\nquantize=computekit_evil"
    )
    registry = Host.discover()
    assert "is taken by computekit 0" in failures(registry)["quantize"]
    assert next(p for p in registry.plugins if p.name == "quantize").first_party


def test_what_a_plugin_prints_is_caught(install: Install, on_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    install("loud", "print('I am here')")
    registry = Host.discover()
    assert capfd.readouterr().out == ""
    assert next(p for p in registry.plugins if p.name == "loud").printed == "I am here\n"


def test_a_slow_plugin_is_known_by_what_it_imports(
    install: Install, on_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (on_path / "pretend_torch.py").write_text("import time; time.sleep(0.06)")
    monkeypatch.setattr(loading, "HEAVY", ("pretend_torch",))
    install("slow", "import pretend_torch")
    slow = next(p for p in Host.discover().plugins if p.name == "slow")
    assert slow.heavy == ("pretend_torch",)
    assert slow.import_s >= 0.06
    sys.modules.pop("pretend_torch")


SPECS = """
    import computekit

    class Specs:
        @computekit.hookspec
        def computekit_flavours(self, kind):
            '''Flavours.'''

    @computekit.hookimpl
    def computekit_addhooks(manager):
        manager.add_hookspecs(Specs)
"""


@pytest.mark.parametrize("name", ["computekit_addhooks", "declare"])
def test_a_plugin_may_extend_a_plugin_whatever_their_order(name: str, install: Install, on_path: Path) -> None:
    mark = "computekit.implements(computekit.hookspecs.computekit_addhooks)"
    install("zz-base", SPECS.replace("computekit.hookimpl", mark).replace("computekit_addhooks(", f"{name}("))
    install("aa-extra", "import computekit\n@computekit.hookimpl\ndef computekit_flavours(kind): return [kind]")
    registry = Host.discover()
    assert failures(registry) == {}
    assert registry.collect("computekit_flavours", str, kind="sweet") == ["sweet"]


@pytest.mark.parametrize("name", ["aa-extra", "zz-extra"])
def test_a_bad_extension_is_blamed_on_its_own_plugin(name: str, install: Install, on_path: Path) -> None:
    """pluggy would raise it in the plugin that declares the hook."""
    install("base", SPECS)
    install(name, "import computekit\n@computekit.hookimpl\ndef computekit_flavours(colour): return []")
    registry = Host.discover()
    assert list(failures(registry)) == [name]
    assert registry.collect("computekit_flavours", str, kind="sweet") == []


def test_an_optional_hook_may_be_unknown(install: Install, on_path: Path) -> None:
    install("early", "import computekit\n@computekit.hookimpl(optionalhook=True)\ndef computekit_future(): return []")
    assert failures(Host.discover()) == {}


@pytest.mark.parametrize(
    ("allow", "loaded"),
    [
        ("good", {"good"}),
        ("computekit-good", {"good"}),
        ("Computekit_Good == 1.0", {"good"}),
        ("good==2.0", set()),
        ("good==2.0,good==1.0", {"good"}),
        ("good,more", {"good", "more"}),
        ("", set()),
    ],
)
def test_the_allow_list_is_exact(
    allow: str, loaded: set[str], install: Install, on_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("good", GOOD)
    install("more", "")
    monkeypatch.setenv("COMPUTEKIT_ALLOW_PLUGINS", allow)
    registry = Host.discover()
    assert {p.name for p in registry.plugins} == loaded | {"computekit"}
    assert {"good", "more"} - loaded <= {skipped.name for skipped in registry.skipped}
    assert {f"computekit_{n}" for n in {"good", "more"} - loaded} & set(sys.modules) == set()


def test_an_allowed_plugin_that_is_missing_is_named(
    install: Install, on_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("good", GOOD)
    monkeypatch.setenv("COMPUTEKIT_ALLOW_PLUGINS", "computekit,computekit-good==1.0,gone,good==2.0,good>=1")
    registry = Host.discover()
    assert "good" in registry.commands
    assert failures(registry) == {
        "gone": "it is allowed, but not installed",
        "good": "version 2.0 is allowed, but 1.0 is installed",
        "good>=1": "it is no name: a list of allowed plugins holds NAME or NAME==VERSION",
    }


@pytest.mark.parametrize("name", ["bad", "computekit-bad", "Computekit_Bad"])
def test_the_disable_list(name: str, install: Install, on_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It calls plugins by the same names as the allow list."""
    install("bad", "import sys; sys.exit(1)")
    monkeypatch.setenv("COMPUTEKIT_DISABLE_PLUGINS", f"{name}, train")
    registry = Host.discover()
    assert registry.failures == []
    assert {s.name for s in registry.skipped} == {"bad", "train"}


def test_parse_allowed() -> None:
    assert parse_allowed(" A_b==1.0 , c ,") == (("a-b", "1.0"), ("c", ""))
    assert Policy().allowed is None
