"""Hooks: each is documented with an example that works, typed, and stable when it grows."""

from __future__ import annotations

import inspect
import warnings
from types import ModuleType, SimpleNamespace

import pluggy
import pytest

import computekit
from computekit import hookspecs
from computekit.errors import PluginDeprecation
from computekit.host import Host
from computekit.loading import LoadedPlugin, Policy, parse_allowed, register

FIRST_PARTY = Host.discover(Policy(parse_allowed("computekit")))
HOOKS = {
    name: getattr(caller.spec.namespace, name)
    for name, caller in vars(FIRST_PARTY.manager.hook).items()
    if name.startswith("computekit_") and caller.spec is not None
}
"""Every hook: those of the host, and those that our plugins declare."""


@pytest.mark.parametrize("name", HOOKS)
def test_every_hook_is_documented_typed_and_marked(name: str) -> None:
    hook = HOOKS[name]
    documentation = inspect.getdoc(hook) or ""
    assert documentation.split("\n")[0].endswith(".")
    assert "Example::" in documentation
    assert name in documentation, "the example implements the hook"
    assert "return" in inspect.get_annotations(hook)


@pytest.mark.parametrize("name", HOOKS)
def test_every_hooks_example_registers(name: str) -> None:
    example = inspect.cleandoc(inspect.getdoc(HOOKS[name]) or "").split("Example::\n", 1)[1]
    plugin = ModuleType("example")
    plugin.my_hookspecs = SimpleNamespace(  # type: ignore[attr-defined]
        flavours=computekit.hookspec(lambda: None)
    )
    source = "from __future__ import annotations\nimport click, computekit\n"
    source += "from computekit import hookspecs, implements\n"
    source += "load_mine = sniff = read = write = None\n"
    exec(source + inspect.cleandoc(example), vars(plugin))
    ours = [(loaded.name, loaded.plugin) for loaded in FIRST_PARTY.plugins if loaded.name != "computekit"]
    host = Host.of(*ours, ("example", plugin))
    if name != "computekit_addhooks":
        implemented = {caller.name for caller in host.manager.get_hookcallers(plugin) or []}
        assert implemented == {name}
    for collected in ("commands", "steps", "architectures", "datasets", "model_formats", "columns", "runtimes"):
        getattr(host, collected)
    assert host.collect("computekit_hardware", computekit.Hardware)
    assert host.collect("computekit_prices", computekit.Price)


def older_plugin(hook: str = "mine_flavours") -> ModuleType:
    module = ModuleType("older")
    module.hook = computekit.hookimpl(lambda kind: [kind], specname=hook)  # type: ignore[attr-defined]
    return module


def manager_with(spec: object) -> pluggy.PluginManager:
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(spec)
    return manager


def test_a_plugin_keeps_working_when_a_hook_gains_an_argument() -> None:
    class Newer:
        @computekit.hookspec
        def mine_flavours(self, kind: str, size: int) -> None:
            """One argument more than the plugin was written for."""

    manager = manager_with(Newer)
    assert register(manager, LoadedPlugin("older", "older", "1", older_plugin())) == []
    assert manager.hook.mine_flavours(kind="sweet", size=3) == [["sweet"]]


def test_a_deprecated_hook_or_argument_warns_with_the_replacement() -> None:
    class Newer:
        @computekit.hookspec(warn_on_impl=PluginDeprecation("use mine_tastes"))
        def mine_flavours(self, kind: str) -> None:
            """A hook on its way out."""

        @computekit.hookspec(warn_on_impl_args={"kind": PluginDeprecation("use the argument 'taste'")})
        def mine_smells(self, kind: str, taste: str) -> None:
            """A hook with an argument on its way out."""

    manager = manager_with(Newer)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert register(manager, LoadedPlugin("a", "a", "1", older_plugin())) == ["use mine_tastes"]
        assert register(manager, LoadedPlugin("b", "b", "1", older_plugin("mine_smells"))) == [
            "use the argument 'taste'"
        ]


def test_implements_needs_no_hook_name() -> None:
    module = ModuleType("mine")

    @computekit.implements(hookspecs.computekit_columns)
    def anything_at_all() -> list[computekit.Column]:
        return [computekit.Column("mine", "mine")]

    module.anything_at_all = anything_at_all  # type: ignore[attr-defined]
    assert "mine" in {column.key for column in Host.of(("mine", module)).columns}
