"""The plugin host: finds plugins, loads each one guarded, checks it, and collects what it contributes.

One broken plugin never takes another command down: whatever goes wrong with a plugin ends in `Host.failures`, which
``--help``, ``computekit plugins`` and ``computekit doctor`` show. ``COMPUTEKIT_STRICT=1`` re-raises instead.
First-party plugins register first, so a third party cannot take the name of one of their commands.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import io
import os
import sys
import time
import types
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pluggy

from . import contracts, hookspecs
from .errors import ComputekitError, UnknownName, nearest

GROUP = "computekit"
FIRST_PARTY = "computekit"

T = TypeVar("T")

_RETURNS: dict[str, type] = {
    "computekit_commands": contracts.Command,
    "computekit_steps": contracts.Step,
    "computekit_architectures": contracts.Architecture,
    "computekit_datasets": contracts.Dataset,
    "computekit_model_formats": contracts.ModelFormat,
    "computekit_hardware": contracts.Hardware,
    "computekit_prices": contracts.Price,
    "computekit_columns": contracts.Column,
}


class PluginRefused(ComputekitError):
    """A plugin does not keep to the contract; the message says how."""


@dataclass(frozen=True)
class LoadedPlugin:
    """A plugin that registered: its entry point, where it comes from and what its import cost."""

    name: str
    distribution: str
    version: str
    plugin: object
    import_s: float = 0.0
    printed: str = ""

    @property
    def first_party(self) -> bool:
        return self.distribution == FIRST_PARTY


@dataclass(frozen=True)
class Failure:
    """A plugin, or one of its contributions, that could not be used, and why."""

    name: str
    distribution: str
    version: str
    reason: str
    error: BaseException | None = None


@dataclass
class Host:
    """All plugins of one process and what they contribute.

    Tests build one around a single plugin with `Host.of`; everything else uses `current`.
    """

    manager: pluggy.PluginManager
    plugins: list[LoadedPlugin] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    strict: bool = False

    @classmethod
    def of(cls, *plugins: tuple[str, object], strict: bool = True) -> Host:
        """A host with exactly the given (name, plugin) pairs besides the built-in one."""
        host = cls(_manager(), strict=strict)
        host._register_builtin()
        for name, plugin in plugins:
            host._guard(name, "(given)", "", functools.partial(host._register, name, "(given)", "", plugin))
        host._declare_hooks()
        return host

    @classmethod
    def discover(cls) -> Host:
        """Load every installed plugin that is not disabled by ``COMPUTEKIT_DISABLE_PLUGINS=a,b``."""
        host = cls(_manager(), strict=os.environ.get("COMPUTEKIT_STRICT", "") not in ("", "0"))
        host._register_builtin()
        disabled = {name.strip() for name in os.environ.get("COMPUTEKIT_DISABLE_PLUGINS", "").split(",")}
        for entry_point in _entry_points():
            if entry_point.name not in disabled:
                host._load(entry_point)
        host._declare_hooks()
        return host

    # -- what plugins contribute ---------------------------------------------------------------------------------

    @functools.cached_property
    def steps(self) -> dict[str, contracts.Step]:
        """Pipeline steps by name."""
        return self._by_name("computekit_steps", "step")

    @functools.cached_property
    def commands(self) -> dict[str, contracts.Command]:
        """Subcommands by name: those of ``computekit_commands`` and the single-word steps."""
        commands = self._by_name("computekit_commands", "command")
        for step in self.steps.values():
            if len(step.argv) == 1:
                commands.setdefault(step.argv[0], contracts.Command(step.command))
        return dict(sorted(commands.items()))

    @functools.cached_property
    def owners(self) -> dict[str, LoadedPlugin]:
        """The plugin behind each subcommand."""
        owners: dict[str, LoadedPlugin] = {}
        for hook in ("computekit_commands", "computekit_steps"):
            for plugin, item in self._collect(hook):
                name = item.name if hook == "computekit_commands" else item.argv[0]
                owners.setdefault(name, plugin)
        return owners

    @functools.cached_property
    def architectures(self) -> dict[str, contracts.Architecture]:
        return self._by_name("computekit_architectures", "architecture")

    @functools.cached_property
    def datasets(self) -> dict[str, contracts.Dataset]:
        return self._by_name("computekit_datasets", "data set")

    @functools.cached_property
    def model_formats(self) -> list[contracts.ModelFormat]:
        """Formats in the order in which they are asked."""
        formats = self._by_name("computekit_model_formats", "model format")
        return sorted(formats.values(), key=lambda item: (item.priority, item.name))

    @functools.cached_property
    def hardware(self) -> list[contracts.Hardware]:
        return [item for _, item in self._collect("computekit_hardware")]

    @functools.cached_property
    def prices(self) -> list[contracts.Price]:
        return [item for _, item in self._collect("computekit_prices")]

    @functools.cached_property
    def columns(self) -> list[contracts.Column]:
        """Table columns, by ``order`` then key; the first plugin to describe a key wins."""
        columns: dict[str, contracts.Column] = {}
        for _, item in self._collect("computekit_columns"):
            columns.setdefault(item.key, item)
        return sorted(columns.values(), key=lambda column: (column.order, column.key))

    def architecture(self, name: str) -> contracts.Architecture:
        """The architecture called ``name``; raises UnknownName with the nearest ones."""
        if name not in self.architectures:
            raise UnknownName("architecture", name, self.architectures, "or give package.module:callable")
        return self.architectures[name]

    def collect(self, hook: str, kind: type[T], **arguments: Any) -> list[T]:
        """Results of a hook that a plugin declared with ``computekit_addhooks``, checked to be ``kind`` objects."""
        return [item for _, item in self._collect(hook, kind, **arguments)]

    # -- loading -------------------------------------------------------------------------------------------------

    def _register_builtin(self) -> None:
        from . import builtin

        self._register("computekit", FIRST_PARTY, _version(), builtin)

    def _load(self, entry_point: importlib.metadata.EntryPoint) -> None:
        distribution = entry_point.dist.name if entry_point.dist else "?"
        version = entry_point.dist.version if entry_point.dist else "?"

        def load() -> None:
            output = io.StringIO()
            start = time.perf_counter()
            with contextlib.redirect_stdout(output):
                plugin = entry_point.load()
            took = time.perf_counter() - start
            if self.manager.has_plugin(entry_point.name):
                other = next(p for p in self.plugins if p.name == entry_point.name)
                raise PluginRefused(
                    f"the plugin name {entry_point.name!r} is taken by {other.distribution} {other.version}"
                )
            self._register(entry_point.name, distribution, version, plugin, took, output.getvalue())

        self._guard(entry_point.name, distribution, version, load)

    def _register(
        self, name: str, distribution: str, version: str, plugin: object, import_s: float = 0.0, printed: str = ""
    ) -> None:
        _check_api(plugin)
        try:
            self.manager.register(plugin, name=name)
        except pluggy.PluginValidationError as error:
            with contextlib.suppress(Exception):
                self.manager.unregister(name=name)
            raise PluginRefused(_explain(error)) from error
        self.plugins.append(LoadedPlugin(name, distribution, version, plugin, import_s, printed))

    def _declare_hooks(self) -> None:
        for loaded in list(self.plugins):
            self._guard_plugin(loaded, lambda p: self._call(p, "computekit_addhooks", manager=self.manager))
        for loaded in list(self.plugins):
            self._guard_plugin(loaded, self._check_hooks)

    def _check_hooks(self, loaded: LoadedPlugin) -> None:
        known = [n for n in vars(self.manager.hook) if not n.startswith("_") and getattr(self.manager.hook, n).spec]
        for caller in self.manager.get_hookcallers(loaded.plugin) or []:
            if caller.spec is not None:
                continue
            impl = next(i for i in caller.get_hookimpls() if i.plugin is loaded.plugin)
            if impl.optionalhook:
                continue
            near = nearest(caller.name, known)
            raise PluginRefused(
                f"unknown hook {caller.name!r}"
                + (f", did you mean {near[0]!r}?" if near else f"; known: {', '.join(sorted(known))}.")
                + " If it is right, the plugin needs a newer computekit"
            )

    def _guard_plugin(self, loaded: LoadedPlugin, action: Callable[[LoadedPlugin], object]) -> None:
        """Run ``action`` on a registered plugin; if it fails, the plugin is taken out again."""
        before = len(self.failures)
        self._guard(loaded.name, loaded.distribution, loaded.version, lambda: action(loaded))
        if len(self.failures) > before:
            self.plugins.remove(loaded)
            self.manager.unregister(plugin=loaded.plugin)

    def _guard(self, name: str, distribution: str, version: str, action: Callable[[], object]) -> None:
        try:
            action()
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # SystemExit at import, and whatever else a plugin may throw
            if self.strict:
                raise
            self.failures.append(Failure(name, distribution, version, _reason(error), error))

    # -- calling hooks -------------------------------------------------------------------------------------------

    def _call(self, loaded: LoadedPlugin, hook: str, **arguments: Any) -> list[Any]:
        """Call one hook on one plugin only."""
        others = [p.plugin for p in self.plugins if p is not loaded]
        results: list[Any] = self.manager.subset_hook_caller(hook, remove_plugins=others)(**arguments)
        return results

    def _collect(self, hook: str, kind: type | None = None, **arguments: Any) -> list[tuple[LoadedPlugin, Any]]:
        """(plugin, item) for everything the plugins return from ``hook``, in order of registration."""
        kind = kind or _RETURNS[hook]
        caller = getattr(self.manager.hook, hook)
        having = {id(impl.plugin) for impl in caller.get_hookimpls()}
        found: list[tuple[LoadedPlugin, Any]] = []
        for loaded in [p for p in self.plugins if id(p.plugin) in having]:

            def gather(loaded: LoadedPlugin = loaded) -> None:
                for result in self._call(loaded, hook, **arguments):
                    found.extend((loaded, item) for item in _checked(hook, kind, result))

            self._guard(loaded.name, loaded.distribution, loaded.version, gather)
        return found

    def _by_name(self, hook: str, what: str) -> dict[str, Any]:
        """Items of ``hook`` by name; a duplicate is refused and named with both distributions."""
        items: dict[str, Any] = {}
        owner: dict[str, LoadedPlugin] = {}
        for loaded, item in self._collect(hook):
            if item.name not in items:
                items[item.name], owner[item.name] = item, loaded
                continue
            first = owner[item.name]
            reason = (
                f"{what} {item.name!r} is already provided by {first.distribution} {first.version}; "
                f"the one of {loaded.distribution} {loaded.version} is ignored"
            )
            if self.strict:
                raise PluginRefused(reason)
            self.failures.append(Failure(loaded.name, loaded.distribution, loaded.version, reason))
        return items


@functools.cache
def current() -> Host:
    """The host of this process, with every installed plugin."""
    return Host.discover()


def _manager() -> pluggy.PluginManager:
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    if os.environ.get("COMPUTEKIT_TRACE", "") not in ("", "0"):
        manager.trace.root.setwriter(lambda line: sys.stderr.write(line))
        manager.enable_tracing()
    return manager


def _entry_points() -> list[importlib.metadata.EntryPoint]:
    """Installed entry points: first-party ones first, then by name, so that the order never depends on the disk."""
    found = importlib.metadata.entry_points(group=GROUP)

    def key(entry_point: importlib.metadata.EntryPoint) -> tuple[bool, str, str]:
        distribution = entry_point.dist.name if entry_point.dist else ""
        return (distribution != FIRST_PARTY, entry_point.name, distribution)

    return sorted(found, key=key)


def _version() -> str:
    from . import __version__

    return __version__


def _check_api(plugin: object) -> None:
    """Refuse a plugin whose ``COMPUTEKIT_API`` (a number, or a (lowest, highest) pair) excludes this version."""
    declared = getattr(plugin, "COMPUTEKIT_API", None)
    if declared is None:
        return
    lowest, highest = declared if isinstance(declared, tuple) else (declared, None)
    if lowest > contracts.API_VERSION:
        raise PluginRefused(f"needs a newer computekit: plugin API {lowest}, this one has {contracts.API_VERSION}")
    if highest is not None and highest < contracts.API_VERSION:
        raise PluginRefused(
            f"is too old for this computekit: it supports plugin API up to {highest}, this one has "
            f"{contracts.API_VERSION}; upgrade the plugin"
        )


def _checked(hook: str, kind: type, result: Any) -> Iterator[Any]:
    if isinstance(result, (str, bytes, dict)) or not isinstance(result, Iterable):
        raise PluginRefused(f"{hook} returned {type(result).__name__}, not a list of {kind.__name__}")
    for item in result:
        if not isinstance(item, kind):
            raise PluginRefused(f"{hook} returned a {type(item).__name__} where a {kind.__name__} belongs")
        if not getattr(item, "name", "-"):
            raise PluginRefused(f"{hook} returned a {kind.__name__} without a name")
        yield item


def _explain(error: pluggy.PluginValidationError) -> str:
    """pluggy's complaint about a hook's arguments, in one line."""
    text = " ".join(str(error).split())
    return f"{text}; hooks only gain arguments, so the plugin may need a newer computekit"


def _reason(error: BaseException) -> str:
    if isinstance(error, PluginRefused):
        return str(error)
    if isinstance(error, SystemExit):
        return f"it called sys.exit({error.code!r})"
    first_line = (str(error).splitlines() or [""])[0]
    return f"{type(error).__name__}: {first_line}" if first_line else type(error).__name__


def module_file(plugin: object) -> str | None:
    """The file that defines a plugin, where it is a module or an instance of a class in one."""
    module = plugin if isinstance(plugin, types.ModuleType) else sys.modules.get(type(plugin).__module__)
    return getattr(module, "__file__", None)
