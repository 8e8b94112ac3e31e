"""Mistakes of plugin authors: each costs what is wrong and nothing else, and the message says what to do."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import click
import pluggy
import pytest

import computekit
from computekit import hookspecs, host, options
from computekit.errors import CommandNotLoaded
from computekit.host import Host
from computekit.loading import PluginRefused, check_api
from computekit.testing import make_model, run_command
from computekit.verbs import LazyCommand, loaded


def written(name: str, code: str) -> ModuleType:
    """A module as if it was imported from a file with this code."""
    module = ModuleType(name)
    exec(code, module.__dict__)
    return module


def complaints(registry: Host) -> list[str]:
    registry.call_hooks()
    return [failure.reason for failure in registry.failures]


# -- what a plugin can do to the host ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "harm",
    ["manager.hook = None", "manager.set_blocked('after')", "manager.unregister(name='before')", "manager.register(1)"],
)
def test_declaring_hooks_is_all_that_the_manager_is_good_for(harm: str) -> None:
    before = ModuleType("before")
    after = written("after", "import computekit\n@computekit.hookimpl\ndef computekit_columns(): return []\n")
    bad = written("bad", f"import computekit\n@computekit.hookimpl\ndef computekit_addhooks(manager): {harm}\n")
    registry = Host.of(("before", before), ("bad", bad), ("after", after), strict=False)
    assert {"plugins", "table"} <= set(registry.commands)
    assert {loaded.name for loaded in registry.plugins} >= {"before", "after"}


def test_hooks_declared_aside_are_hooks_of_the_host() -> None:
    spec = written("spec", "import computekit\n@computekit.hookspec\ndef computekit_flavours() -> list[str]: ...\n")

    @computekit.implements(hookspecs.computekit_addhooks)
    def declare(manager: pluggy.PluginManager) -> None:
        manager.add_hookspecs(spec)

    declaring = ModuleType("declaring")
    declaring.declare = declare  # type: ignore[attr-defined]
    using = written("using", "import computekit\n@computekit.hookimpl\ndef computekit_flavours(): return ['sour']\n")
    registry = Host.of(("using", using), ("declaring", declaring))
    assert registry.collect("computekit_flavours", str) == ["sour"]


# -- what its hooks return -----------------------------------------------------------------------------------------


def test_one_bad_item_costs_only_itself() -> None:
    module = ModuleType("p")
    good, bad = click.Command("good", help="Good."), click.Command("Bad Name")
    module.computekit_commands = computekit.hookimpl(  # type: ignore[attr-defined]
        lambda: [computekit.Command(bad), 5, computekit.Command(good)]
    )
    registry = Host.of(("p", module), strict=False)
    assert "good" in registry.commands
    reasons = complaints(registry)
    assert len(reasons) == 2
    assert any("'Bad Name' is no name for a command" in reason for reason in reasons)
    assert any(reason == "computekit_commands returned a int where a Command belongs" for reason in reasons)
    with pytest.raises(PluginRefused, match=r"^plugin \(given\): 'Bad Name'"):
        _ = Host.of(("p", module)).commands


def test_a_hook_that_nobody_marked_is_told() -> None:
    code = "def computekit_columns(): return []\ndef computekit_helper(): ...\n"
    assert complaints(Host.of(("p", written("p", code)), strict=False)) == [
        "computekit_columns is never called: mark it with @computekit.hookimpl or @implements"
    ]


def test_a_hook_that_a_plugin_imports_or_declares_is_no_unmarked_one() -> None:
    module = written("p", "import computekit\n@computekit.hookspec\ndef computekit_flavours() -> list[str]: ...\n")
    declare = computekit.hookimpl(lambda manager: manager.add_hookspecs(module), specname="computekit_addhooks")
    module.declare = declare  # type: ignore[attr-defined]
    importing = written("q", "from computekit.hookspecs import computekit_columns")
    registry = Host.of(("p", module), ("q", importing), strict=False)
    assert hasattr(registry.manager.hook, "computekit_flavours")
    assert complaints(registry) == []


@pytest.mark.parametrize("spec", ["computekit_columns", None])
def test_implements_wants_the_hook(spec: object) -> None:
    with pytest.raises(TypeError, match="takes the hook itself"):
        computekit.implements(spec)  # type: ignore[arg-type]


@pytest.mark.parametrize("thing", [type("X", (), {}), 5])
def test_implements_marks_functions(thing: object) -> None:
    with pytest.raises(TypeError, match="computekit_columns is implemented by a function"):
        computekit.implements(hookspecs.computekit_columns)(thing)  # type: ignore[arg-type]


def test_a_range_of_versions_starts_with_the_lowest() -> None:
    module = ModuleType("p")
    module.COMPUTEKIT_API = (2, 1)  # type: ignore[attr-defined]
    with pytest.raises(PluginRefused, match="the lowest version comes first"):
        check_api(module)


# -- its commands --------------------------------------------------------------------------------------------------


@click.command()
@click.option("--seed", "own_seed", default=1)
@options.step
def same_option(run: computekit.StepRun, **_: object) -> None:
    """Clash."""


@click.command()
@click.option("--destination", "output")
@options.step
def same_parameter(run: computekit.StepRun, **_: object) -> None:
    """Clash."""


@click.command()
@click.option("--upper", "case", flag_value="upper")
@click.option("--lower", "case", flag_value="lower")
@options.common
def flags(case: str) -> None:
    """Choose."""


@pytest.mark.parametrize(
    ("command", "what"), [(same_option, "option '--seed'"), (same_parameter, "parameter 'output'")]
)
def test_an_option_of_the_hosts_is_not_overridden_in_silence(command: click.Command, what: str) -> None:
    module = ModuleType("p")
    step = computekit.Step(command.name or "", command, takes="nothing", gives="model")
    module.computekit_steps = computekit.hookimpl(lambda: [step])  # type: ignore[attr-defined]
    [reason] = complaints(Host.of(("p", module), strict=False))
    assert f"command {command.name!r}: {what} is there twice" in reason
    with pytest.raises(CommandNotLoaded, match=re.escape(f"{what} is there twice")):
        loaded(LazyCommand("x", f"{__name__}:{_attribute(command)}", "Lazy."))


def _attribute(command: click.Command) -> str:
    return next(name for name, value in vars(sys.modules[__name__]).items() if value is command)


def test_flags_that_set_one_parameter_are_a_choice() -> None:
    assert loaded(LazyCommand("flags", f"{__name__}:flags", "Lazy.")) is flags


def test_a_command_of_a_plugin_that_is_kept_out_is_not_looked_for_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMPUTEKIT_DISABLE_PLUGINS", "quantize")
    with host.using(Host.discover()):
        outcome = run_command("zzzzz")
    assert outcome.exit_code == 2
    assert "one of a plugin that is not loaded or has problems (quantize)" in outcome.stderr
    assert "pip install" not in outcome.stderr


def test_every_missing_plugin_of_an_allow_list_is_named() -> None:
    outcome = run_command("plugins", "--allow", "computekit,nowhere,neither==1")
    assert outcome.exit_code == 1
    assert "nowhere (it is allowed" in outcome.stderr
    assert "neither (it is allowed" in outcome.stderr


# -- its steps -----------------------------------------------------------------------------------------------------


def _writes_nothing(run: computekit.StepRun, model: Path) -> None:
    run.put("x", 1)


def _forgets_the_temporary_file(run: computekit.StepRun, model: Path) -> None:
    with run.writing("result.pt"):
        pass


def _puts_nan(run: computekit.StepRun, model: Path) -> None:
    run.put("x", float("nan"))


def _puts_a_list(run: computekit.StepRun, model: Path) -> None:
    run.put("x", [1])  # type: ignore[arg-type]


def _gives_no_reason(run: computekit.StepRun, model: Path) -> None:
    run.unknown("x", "")


def _forgets_the_input(run: computekit.StepRun, model: Path) -> None:
    with run.writing("result.pt") as temporary:
        temporary.write_bytes(model.read_bytes())


@pytest.fixture
def at_fault(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A host with the step ``faulty``, which does what the test's parameter does, and a model in the folder."""
    monkeypatch.chdir(tmp_path)
    command = click.command("faulty")(options.model(options.step(request.param)))
    module = ModuleType("p")
    step = computekit.Step("faulty", command, takes="model", gives="model")
    module.computekit_steps = computekit.hookimpl(lambda: [step])  # type: ignore[attr-defined]
    with host.using(Host.of(("p", module))):
        yield make_model(Path("model.pt"))


@pytest.mark.parametrize(
    ("at_fault", "what"),
    [
        (_writes_nothing, "it wrote no model"),
        (_forgets_the_temporary_file, "it wrote nothing to the path that run.writing() gave it"),
        (_puts_nan, "run.put('x', nan): value Input should be a finite number"),
        (_puts_a_list, "run.put('x', [1]): value"),
        (_gives_no_reason, "run.unknown('x') needs a reason"),
    ],
    indirect=["at_fault"],
)
def test_a_step_at_fault_says_so_on_one_line_and_keeps_the_old_output(at_fault: Path, what: str) -> None:
    Path("old.pt").write_bytes(b"old")
    outcome = run_command("faulty", str(at_fault), "-o", "old.pt")
    assert outcome.exit_code == 1
    assert f"step 'faulty' is at fault: {what}" in outcome.stderr
    assert "internal error" not in outcome.stderr
    assert Path("old.pt").read_bytes() == b"old"


@pytest.mark.parametrize("at_fault", [_forgets_the_input], indirect=True)
def test_an_input_that_was_not_registered_makes_the_training_unknown_not_free(at_fault: Path) -> None:
    outcome = run_command("faulty", str(at_fault))
    assert outcome.exit_code == 0, outcome.stderr
    record = computekit.Record.model_validate_json(Path("result.pt.record.json").read_text())
    assert record.rows[0].quantities["train_flops"].value is None
    assert record.lineage[-1].train_flops is None


# -- what it adds to the commands of others ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "what"),
    [
        ("raise KeyError('boom')", "internal error in plugin (given), KeyError: 'boom'"),
        ("import sys; sys.exit(0)", "Error: plugin (given) called sys.exit(0)"),
    ],
)
def test_an_error_of_a_contribution_names_its_plugin(code: str, what: str, tmp_path: Path) -> None:
    module = written(
        "zoo",
        f"import computekit\ndef read(path, trust_pickle):\n    {code}\n"
        "@computekit.hookimpl\ndef computekit_model_formats():\n"
        "    return [computekit.ModelFormat('odd', 'odd', lambda path: True, read, priority=0)]\n",
    )
    (tmp_path / "model.odd").write_bytes(b"odd")
    with host.using(Host.of(("zoo", module))):
        outcome = run_command("convert", str(tmp_path / "model.odd"), "-o", str(tmp_path / "model.pt"))
    assert outcome.exit_code == 1
    assert what in outcome.stderr


def test_an_error_after_a_contribution_was_used_names_whose_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    module = written(
        "zoo",
        "import computekit\n@computekit.hookimpl\n"
        "def computekit_datasets(): return [computekit.Dataset('odd', 'odd', lambda: None)]\n",
    )

    def use() -> None:
        """A command of ours that trips over what the plugin gave it."""
        data: object = host.current().datasets["odd"].load()
        raise AttributeError(f"{data} has no inputs")

    registry = Host.of(("zoo", module))
    doctor = loaded(registry.commands["doctor"].command)
    monkeypatch.setattr(doctor, "callback", use)
    monkeypatch.setattr(doctor, "params", [])
    with host.using(registry):
        outcome = run_command("doctor")
    assert "internal error with plugin (given), AttributeError: None has no inputs" in outcome.stderr
