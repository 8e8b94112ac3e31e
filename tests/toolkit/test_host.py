"""The host: what plugins contribute, in which order, and who wins."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType, SimpleNamespace

import click
import pytest
from click.testing import CliRunner

import computekit
from computekit import host
from computekit.cli import main
from computekit.commands.plugins import describe
from computekit.errors import PluginDeprecation
from computekit.host import Host
from computekit.loading import PluginRefused


def command(name: str, text: str = "Say hello.") -> click.Command:
    return click.Command(name, help=text, callback=lambda: None)


def plugin(**hooks: object) -> ModuleType:
    """A plugin whose hook ``computekit_NAME`` returns the given value, or calls the given function."""
    module = ModuleType("test_plugin")
    for name, value in hooks.items():
        function = value if callable(value) else lambda value=value: value
        setattr(module, f"computekit_{name}", computekit.hookimpl(function))
    return module


def step(name: str, **more: object) -> computekit.Step:
    return computekit.Step(name, command(name), takes="model", gives="model", **more)  # type: ignore[arg-type]


def test_built_in_commands_are_there_without_any_plugin() -> None:
    assert {"doctor", "plugins", "table", "completion"} <= set(Host.of().commands)


def test_commands_are_sorted_by_name() -> None:
    names = list(Host.of(("p", plugin(commands=[computekit.Command(command(n)) for n in ("zeta", "alpha")]))).commands)
    assert names == sorted(names)
    assert {"zeta", "alpha"} <= set(names)


def test_a_step_is_a_command_and_a_pipeline_step() -> None:
    registry = Host.of(("p", plugin(steps=[step("ternary")])))
    assert registry.commands["ternary"].command is registry.steps["ternary"].command


def test_a_step_of_several_words_lives_in_its_plugins_group() -> None:
    inner = command("models")
    group = click.Group("bench", commands={"models": inner})
    good = computekit.Step("bench", inner, takes="models", gives="record", words=("bench", "models"))
    registry = Host.of(("p", plugin(commands=[computekit.Command(group)], steps=[good])))
    assert registry.steps["bench"].argv == ("bench", "models")
    assert registry.commands["bench"].command is group


@pytest.mark.parametrize("words", [("bench", "other"), ("nothing", "models"), ("doctor", "models")])
def test_a_step_whose_words_lead_nowhere_is_refused(words: tuple[str, ...]) -> None:
    bad = computekit.Step("bench", command("models"), takes="models", gives="record", words=words)
    registry = Host.of(("p", plugin(steps=[bad])), strict=False)
    assert "bench" not in registry.steps
    assert f"no command 'computekit {' '.join(words)}'" in registry.failures[0].reason


@pytest.mark.parametrize("kind", ["commands", "steps"])
def test_the_first_to_provide_a_name_keeps_it_whatever_the_hook(kind: str) -> None:
    """A third party cannot take a step by offering a plain command of that name, nor the other way round."""
    mine, theirs = step("quantize"), {"commands": computekit.Command(command("quantize")), "steps": step("quantize")}
    registry = Host.of(("first", plugin(steps=[mine])), ("second", plugin(**{kind: [theirs[kind]]})), strict=False)
    assert registry.commands["quantize"].command is mine.command
    [failure] = registry.failures
    assert failure.name == "second"
    assert failure.loaded
    assert "'quantize' is already provided by" in failure.reason


def test_a_step_cannot_take_the_name_of_a_built_in_command() -> None:
    registry = Host.of(("p", plugin(steps=[step("table")])), strict=False)
    assert "table" not in registry.steps
    assert registry.owner(registry.commands["table"]).distribution == "computekit"  # type: ignore[union-attr]


def test_strict_raises_instead_of_noting() -> None:
    with pytest.raises(PluginRefused, match="already provided"):
        _ = Host.of(("a", plugin(steps=[step("x")])), ("b", plugin(steps=[step("x")]))).steps


@pytest.mark.parametrize(
    ("result", "complaint"),
    [
        (7, "returned int, not a list of Step"),
        ({"a": 1}, "returned dict, not a list of Step"),
        ("text", "returned str, not a list of Step"),
        (["text"], "returned a str where a Step belongs"),
        ([computekit.Command(command("x"))], "returned a Command where a Step belongs"),
        ([computekit.Step("", command("x"), takes="model", gives="model")], "returned a Step without a name"),
        ([computekit.Step("X y", command("x"), takes="model", gives="model")], "'X y' is no name for a command"),
        ([computekit.Step("x", print, takes="model", gives="model")], "not a click command"),  # type: ignore[arg-type]
        ([computekit.Step("x", command("x"), takes="modle", gives="model")], "takes is 'modle', not one of"),  # type: ignore[arg-type]
        ([computekit.Step("x", command("x"), takes="model", gives="mdl")], "gives is 'mdl', not one of"),  # type: ignore[arg-type]
    ],
)
def test_what_a_hook_returns_is_checked(result: object, complaint: str) -> None:
    registry = Host.of(("bad", plugin(steps=result)), ("good", plugin(steps=[step("good")])), strict=False)
    assert set(registry.steps) == {"good", *Host.of().steps}
    assert complaint in registry.failures[0].reason


def test_a_hook_that_raises_costs_only_that_hook() -> None:
    def explode() -> list[computekit.Dataset]:
        raise RuntimeError("boom\nsecond line")

    registry = Host.of(("bad", plugin(datasets=explode, steps=[step("fine")])), strict=False)
    assert "fine" in registry.steps
    _ = registry.datasets
    [failure] = registry.failures
    assert failure.reason == "computekit_datasets failed: RuntimeError: boom"
    assert failure.loaded


class Mute(click.Command):
    def get_short_help_str(self, limit: int = 45) -> str:
        raise RuntimeError("no help")


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even this")


@pytest.mark.parametrize("bad", [Mute("bad"), click.Command("bad", help="\ud800"), click.Command("bad", help=3)])  # type: ignore[arg-type]
def test_a_command_that_cannot_tell_its_help_hides_no_other(bad: click.Command) -> None:
    registry = Host.of(("bad", plugin(commands=[computekit.Command(bad)])), strict=False)
    with host.using(registry):
        shown = CliRunner().invoke(main, ["--help"])
    assert shown.exit_code == 0
    assert "  table " in shown.output
    assert "'bad' cannot tell its own help" in registry.failures[0].reason


def test_an_error_that_cannot_tell_itself_is_named_by_its_type() -> None:
    def explode() -> list[computekit.Step]:
        raise Unspeakable

    registry = Host.of(("bad", plugin(steps=explode, commands=[computekit.Command(command("fine"))])), strict=False)
    assert "fine" in registry.commands
    assert registry.failures[0].reason == "computekit_steps failed: Unspeakable"


def test_an_error_in_a_command_names_its_plugin() -> None:
    def explode() -> None:
        raise Unspeakable

    bad = computekit.Command(click.Command("bad", callback=explode))
    with host.using(Host.of(("bad", plugin(commands=[bad])))):
        shown = CliRunner().invoke(main, ["bad"])
    assert shown.exit_code == 1
    assert shown.stderr.startswith("Error: internal error in plugin (given), Unspeakable (--debug")


def test_what_a_hook_prints_stays_out_of_the_output(capsys: pytest.CaptureFixture[str]) -> None:
    def chatty() -> list[computekit.Step]:
        print("noise")
        return []

    _ = Host.of(("chatty", plugin(steps=chatty))).steps
    assert capsys.readouterr() == ("", "noise\n")


@pytest.mark.parametrize(
    ("source", "reason"),
    [("import sys; sys.exit(0)", "it called sys.exit(0)"), ("import not_there", "No module named 'not_there'")],
)
@pytest.mark.parametrize("words", [["plugins", "--json"], ["doctor", "--json"]])
def test_a_step_whose_module_fails_is_told_and_hides_nothing(
    source: str, reason: str, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "failing_step.py").write_text(f"print('noise')\n{source}\n")
    monkeypatch.syspath_prepend(tmp_path)
    lazy = computekit.LazyCommand("lazy", "failing_step:lazy", "Fails late.")
    bad = computekit.Step("lazy", lazy, takes="model", gives="model")
    with host.using(Host.of(("bad", plugin(steps=[bad])), ("good", plugin(steps=[step("good")])), strict=False)):
        shown = CliRunner().invoke(main, words)
        assert reason in CliRunner().invoke(main, ["lazy"]).stderr
    assert shown.exit_code == 0
    told = json.loads(shown.stdout)
    assert reason in str(next(p for p in told["plugins"] if p["name"] == "bad"))
    assert "lazy" not in [item["name"] for item in told.get("steps", [])]


@pytest.mark.parametrize("hook", ["model_formats", "runtimes", "hardware", "prices", "columns"])
@pytest.mark.parametrize("words", [["plugins"], ["doctor"]])
def test_a_problem_of_any_hook_is_told(hook: str, words: list[str]) -> None:
    with host.using(Host.of(("bad", plugin(**{hook: 7})), strict=False)):
        assert "returned int, not a list of" in CliRunner().invoke(main, words).stdout


def test_the_list_of_plugins_tells_what_each_brings() -> None:
    with host.using(Host.of(("p", plugin(hardware=[], columns=[], steps=[step("ternary")])))):
        shown = CliRunner().invoke(main, ["plugins"]).stdout
    assert "ternary; columns, hardware" in shown


def test_problems_are_noted_once_however_often_one_looks() -> None:
    registry = Host.of(("bad", plugin(steps=["x"])), strict=False)
    for _ in range(3):
        _ = registry.steps, registry.commands
        assert registry.named("computekit_datasets", computekit.Dataset, "data set").keys() >= {"digits"}
    assert len(registry.failures) == 1


def test_an_object_that_comes_after_another_is_not_taken_for_it() -> None:
    """Objects that hooks make afresh are kept: an id that was free again would point to the wrong plugin."""
    registry = Host.of(("p", plugin(datasets=lambda: [computekit.Dataset("mine", "images", lambda: None)])))  # type: ignore[arg-type, return-value]
    for _ in range(50):
        registry.collect("computekit_datasets", computekit.Dataset)
        assert registry.owner(computekit.Dataset("other", "images", lambda: None)) is None  # type: ignore[arg-type, return-value]


def test_looking_a_name_up_notes_the_plugin_that_takes_part() -> None:
    data = computekit.Dataset("mine", "images", lambda: None)  # type: ignore[arg-type, return-value]
    registry = Host.of(("one", plugin(datasets=[data])), ("two", plugin(steps=[step("x")])))
    _ = list(registry.datasets.items()), "mine" in registry.datasets
    assert registry.taking_part == {}
    _ = registry.datasets["mine"]
    assert set(registry.taking_part) == {"one"}


def test_columns_keep_the_first_description_of_a_key() -> None:
    mine = computekit.Column("parameters", "mine")
    extra = computekit.Column("sparsity", "sparsity", order=1)
    columns = Host.of(("p", plugin(columns=[mine, extra]))).columns
    assert columns[0] == extra
    assert [c.title for c in columns if c.key == "parameters"] != ["mine"]


def test_unknown_architecture_names_the_nearest() -> None:
    net = computekit.Architecture("resnet-mine", "a net", lambda: None)  # type: ignore[arg-type, return-value]
    registry = Host.of(("p", plugin(architectures=[net])))
    with pytest.raises(computekit.UnknownName, match="did you mean resnet-mine"):
        registry.architecture("resnet-mime")
    assert registry.architecture("resnet-mine") is net


def test_a_hook_that_returns_nothing_contributes_nothing() -> None:
    assert dict(Host.of(("p", plugin(steps=lambda: None))).steps).keys() == Host.of().steps.keys()


def test_an_object_that_cannot_be_hashed_is_no_plugin() -> None:
    """pluggy keeps plugins in sets; such an object would fail every hook call, whoever is called."""
    with pytest.raises(PluginRefused, match="cannot be hashed"):
        Host.of(("odd", SimpleNamespace()))


def test_what_is_deprecated_is_told_with_the_replacement() -> None:
    class Specs:
        @computekit.hookspec(warn_on_impl=PluginDeprecation("use computekit_tastes"))
        def computekit_flavours(self) -> None:
            """A hook on its way out."""

    base = plugin(addhooks=lambda manager: manager.add_hookspecs(Specs))
    registry = Host.of(("base", base), ("old", plugin(flavours=[])))
    [(loaded, text)] = registry.deprecations
    assert (loaded.name, text) == ("old", "use computekit_tastes")
    [old] = [entry for entry in describe(registry)["plugins"] if entry["name"] == "old"]
    assert (old["state"], old["reason"]) == ("loaded", "deprecated: use computekit_tastes")


def test_using_swaps_the_host_and_puts_it_back() -> None:
    before, mine = host.current(), Host.of()
    with host.using(mine):
        assert host.current() is mine
    assert host.current() is before
