"""The plugin host: registers plugins, checks what they contribute and hands it out.

One broken plugin never takes another command down: whatever goes wrong with a plugin ends in `Host.failures`, which
``--help``, ``computekit plugins`` and ``computekit doctor`` show. ``COMPUTEKIT_STRICT=1`` re-raises instead.
Plugins register in a fixed order, first-party ones first; where two provide the same name, the first one keeps it.
"""

from __future__ import annotations

import functools
import os
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click
import pluggy

from . import hookspecs, loading
from .errors import UnknownName, nearest
from .guarding import Guard
from .loading import FIRST_PARTY, Failure, LoadedPlugin, PluginRefused, Policy
from .results import check, listed, returned
from .verbs import Command, LazyCommand, Step

if TYPE_CHECKING:
    from .contracts import Architecture, Column, Dataset, Hardware, ModelFormat, Price, Runtime

T = TypeVar("T")


class Contributions(dict[str, T]):
    """What plugins contribute, by name. Looking one up notes that its plugin takes part in this run."""

    def __init__(self, host: Host) -> None:
        super().__init__()
        self._host = host

    def __getitem__(self, name: str) -> T:
        item = super().__getitem__(name)
        self._host.takes_part(item)
        return item


class Host(Guard):
    """All plugins of one process and what they contribute.

    Tests build one around a single plugin with `Host.of`; everything else uses `current`.
    """

    def __init__(self, strict: bool = False) -> None:
        super().__init__(strict)
        self.manager = loading.manager(pluggy.PluginManager)
        self.plugins: list[LoadedPlugin] = []
        self.skipped: list[Failure] = []
        """Plugins that the allow or disable list keeps out; nothing of them was imported."""
        self.deprecations: list[tuple[LoadedPlugin, str]] = []
        self.taking_part: dict[str, LoadedPlugin] = {}
        """Plugins whose contributions were looked up so far; the record of a step names them."""
        self._origins: dict[int, tuple[object, LoadedPlugin]] = {}
        """What each plugin contributed, by id; the objects are kept, so that an id is never used again."""

    @classmethod
    def of(cls, *plugins: tuple[str, object], strict: bool = True) -> Host:
        """A host with exactly the given (name, plugin) pairs besides the built-in one."""
        host = cls(strict)
        host._admit([_builtin(), *(LoadedPlugin(name, "(given)", "", plugin) for name, plugin in plugins)])
        return host

    @classmethod
    def discover(cls, policy: Policy | None = None) -> Host:
        """Load every installed plugin that ``policy`` (default: the environment's) allows."""
        host = cls(strict=os.environ.get("COMPUTEKIT_STRICT", "") not in ("", "0"))
        policy = policy or Policy.from_environment()
        loaded, taken = [_builtin()], {FIRST_PARTY: f"{FIRST_PARTY} {_builtin().version}"}
        installed = loading.find()
        for found in installed:
            about = (found.name, found.distribution, found.version)
            refusal = policy.refusal(found)
            if refusal:
                host.skipped.append(Failure(*about, refusal))
                continue
            with host.guarded(*about):
                if found.name in taken:
                    raise PluginRefused(f"the plugin name {found.name!r} is taken by {taken[found.name]}")
                loaded.append(loading.load(found))
                taken[found.name] = f"{found.distribution} {found.version}"
                if loaded[-1].effects:
                    host.effects.append((loaded[-1], f"when imported, it {', '.join(loaded[-1].effects)}"))
        host._admit(loaded)
        host.failures += policy.unmet(installed)
        return host

    # -- what plugins contribute ---------------------------------------------------------------------------------

    @property
    def commands(self) -> Contributions[Command]:
        """Subcommands by name: those of ``computekit_commands`` and the single-word steps."""
        return self._verbs[0]

    @property
    def steps(self) -> Contributions[Step]:
        """Pipeline steps by name."""
        return self._verbs[1]

    @functools.cached_property
    def architectures(self) -> Contributions[Architecture]:
        from .contracts import Architecture

        return self.named("computekit_architectures", Architecture, "architecture")

    @functools.cached_property
    def datasets(self) -> Contributions[Dataset]:
        from .contracts import Dataset

        return self.named("computekit_datasets", Dataset, "data set")

    @functools.cached_property
    def model_formats(self) -> list[ModelFormat]:
        """Formats in the order in which they are asked."""
        from .contracts import ModelFormat

        formats = self.named("computekit_model_formats", ModelFormat, "model format")
        return sorted(formats.values(), key=lambda item: (item.priority, item.name))

    @functools.cached_property
    def runtimes(self) -> Contributions[Runtime]:
        from .contracts import Runtime

        return self.named("computekit_runtimes", Runtime, "runtime")

    @functools.cached_property
    def hardware(self) -> list[Hardware]:
        from .contracts import Hardware

        return self.collect("computekit_hardware", Hardware)

    @functools.cached_property
    def prices(self) -> list[Price]:
        from .contracts import Price

        return self.collect("computekit_prices", Price)

    @functools.cached_property
    def columns(self) -> list[Column]:
        """Table columns, by ``order`` then key; the first plugin to describe a key wins."""
        from .contracts import Column

        columns: dict[str, Column] = {}
        for item in self.collect("computekit_columns", Column):
            columns.setdefault(item.key, item)
        return sorted(columns.values(), key=lambda column: (column.order, column.key))

    def call_hooks(self) -> None:
        """Call every hook, so that all that is wrong with a plugin comes to light in `failures` and `effects`."""
        _ = self.commands, self.architectures, self.datasets, self.model_formats, self.hardware, self.prices
        _ = self.columns, self.runtimes, self.extensions

    @functools.cached_property
    def extensions(self) -> dict[str, Contributions[Any]]:
        """What plugins contribute to the hooks of other plugins, by hook; hooks that need arguments are left out."""
        found: dict[str, Contributions[Any]] = {}
        for name, caller in sorted(vars(self.manager.hook).items()):
            if name.startswith("_") or caller.spec is None or caller.spec.namespace is hookspecs:
                continue
            if not caller.spec.argnames:
                found[name] = self.named(name, returned(caller.spec.function), title(name))
        return found

    def architecture(self, name: str) -> Architecture:
        """The architecture called ``name``; raises UnknownName with the nearest ones."""
        if name not in self.architectures:
            raise UnknownName("architecture", name, self.architectures, "or give package.module:callable")
        return self.architectures[name]

    def owner(self, item: object) -> LoadedPlugin | None:
        """The plugin that contributed ``item``."""
        return self._origins[id(item)][1] if id(item) in self._origins else None

    def _origin(self, item: object) -> LoadedPlugin:
        return self._origins[id(item)][1]

    def takes_part(self, item: object) -> None:
        """Note that the plugin behind ``item`` had a part in this run."""
        loaded = self.owner(item)
        if loaded is not None:
            self.taking_part[loaded.name] = loaded

    def collect(self, hook: str, kind: type[T], /, **arguments: Any) -> list[T]:
        """Everything the plugins return from ``hook``, checked to be ``kind`` objects, in order of registration.

        For hooks of the host and for those that a plugin declared with ``computekit_addhooks``.
        """
        caller = getattr(self.manager.hook, hook)
        having = {id(impl.plugin) for impl in caller.get_hookimpls()}
        found: list[T] = []
        refused: list[tuple[LoadedPlugin, PluginRefused]] = []
        for loaded in [p for p in self.plugins if id(p.plugin) in having]:
            with self.guarded(*loaded[:3], during=hook), self.contained(loaded, hook):
                others = [p.plugin for p in self.plugins if p is not loaded]
                results = self.manager.subset_hook_caller(hook, remove_plugins=others)(**arguments)
                for item in [item for result in results for item in listed(hook, kind, result)]:
                    try:
                        check(hook, kind, item)
                    except PluginRefused as refusal:  # the others of the list are as good as before
                        refused.append((loaded, refusal))
                    else:
                        self._origins[id(item)] = (item, loaded)
                        found.append(item)
        for loaded, fault in refused:
            with self.guarded(*loaded[:3], during=hook):
                raise fault
        return found

    def named(self, hook: str, kind: type[T], what: str, /, **arguments: Any) -> Contributions[T]:
        """Items of ``hook`` by their ``name``; a duplicate is refused and named with both distributions."""
        items: Contributions[T] = Contributions(self)
        for item in self.collect(hook, kind, **arguments):
            self._add(items, getattr(item, "name", repr(item)), item, what)
        return items

    # -- commands and steps share one space of names -------------------------------------------------------------

    @functools.cached_property
    def _verbs(self) -> tuple[Contributions[Command], Contributions[Step]]:
        commands: Contributions[Command] = Contributions(self)
        steps: Contributions[Step] = Contributions(self)
        order = [loaded.name for loaded in self.plugins]
        offered: list[Command | Step] = [
            *self.collect("computekit_commands", Command),
            *self.collect("computekit_steps", Step),
        ]
        for item in sorted(offered, key=lambda item: order.index(self._origin(item).name)):
            if isinstance(item, Command):
                self._add(commands, item.name, item, "command")
            else:
                with self.guarded(*self._origin(item)[:3], during="computekit_steps"):
                    self._add_step(item, commands, steps)
        for name in sorted(commands):
            commands[name] = commands.pop(name)
        return commands, steps

    def _add_step(self, step: Step, commands: Contributions[Command], steps: Contributions[Step]) -> None:
        self._refuse_duplicate(steps, step.name, step, "step")
        if len(step.argv) == 1:
            self._refuse_duplicate(commands, step.argv[0], step, "command")
            command = commands[step.argv[0]] = Command(step.command)
            self._origins[id(command)] = (command, self._origin(step))
        else:
            self._check_words(step, commands)
        steps[step.name] = step

    def _check_words(self, step: Step, commands: Contributions[Command]) -> None:
        """A step of several words must be reachable by them; what is lazy is not imported to find out."""
        root = commands.get(step.argv[0])
        if root is not None and self.owner(root) is self.owner(step):
            found: click.Command | None = root.command
            for word in step.argv[1:]:
                if isinstance(found, LazyCommand):
                    return
                found = found.commands.get(word) if isinstance(found, click.Group) else None
            if found is step.command:
                return
        words = " ".join(step.argv)
        raise PluginRefused(f"step {step.name!r}: there is no command 'computekit {words}' of this plugin")

    def _add(self, items: Contributions[T], name: str, item: T, what: str) -> None:
        with self.guarded(*self._origin(item)[:3], during=what):
            self._refuse_duplicate(items, name, item, what)
            items[name] = item

    def _refuse_duplicate(self, items: Contributions[Any], name: str, item: object, what: str) -> None:
        if name in items:
            first, second = self._origin(items.get(name)), self._origin(item)
            raise PluginRefused(
                f"{what} {name!r} is already provided by {first.distribution} {first.version}; "
                f"the one of {second.distribution} {second.version} is ignored"
            )

    # -- loading -------------------------------------------------------------------------------------------------

    def _admit(self, candidates: list[LoadedPlugin]) -> None:
        """Let every plugin declare its hooks, then register them all, so that each is checked against every hook."""
        declared = []
        for loaded in candidates:
            with self.guarded(*loaded[:3]):
                self._declare_hooks(loaded)
                declared.append(loaded)
        for loaded in declared:
            with self.guarded(*loaded[:3]):
                deprecated = loading.register(self.manager, loaded)
                self.deprecations += [(loaded, text) for text in deprecated]
                try:
                    self._check_hooks(loaded)
                except PluginRefused:
                    self.manager.unregister(name=loaded.name)
                    raise
                self.plugins.append(loaded)
            for name in loading.unmarked(self.manager, loaded.plugin):
                with self.guarded(*loaded[:3], during=name):
                    raise PluginRefused(f"{name} is never called: mark it with @computekit.hookimpl or @implements")

    def _declare_hooks(self, loaded: LoadedPlugin) -> None:
        """Call ``computekit_addhooks`` of one plugin while none is registered.

        Were the others registered already, pluggy would blame their mistakes on the plugin that declares the hook. It
        gets a manager that nothing else hangs on, so that all it can do to this host is to declare hooks.
        """
        alone, aside = types.ModuleType(loaded.name), loading.manager(loading.Declarations)
        for name in dir(loaded.plugin):
            marked = self.manager.parse_hookimpl_opts(loaded.plugin, name)
            if marked is not None and (marked.get("specname") or name) == "computekit_addhooks":
                setattr(alone, name, getattr(loaded.plugin, name))
                break
        else:
            return
        loading.register(aside, LoadedPlugin(loaded.name, loaded.distribution, loaded.version, alone))
        with self.contained(loaded, "computekit_addhooks"):
            aside.hook.computekit_addhooks(manager=aside)
        for namespace in aside.declared[1:]:  # the first is the host's own
            self.manager.add_hookspecs(namespace)

    def _check_hooks(self, loaded: LoadedPlugin) -> None:
        known = [n for n in vars(self.manager.hook) if not n.startswith("_") and getattr(self.manager.hook, n).spec]
        for caller in self.manager.get_hookcallers(loaded.plugin) or []:
            impl = next(i for i in caller.get_hookimpls() if i.plugin is loaded.plugin)
            if impl.wrapper or impl.hookwrapper:
                raise PluginRefused(
                    f"{caller.name} is written as a wrapper, but a plugin sees only what it contributes itself"
                )
            if caller.spec is not None or impl.optionalhook:
                continue
            near = nearest(caller.name, known)
            raise PluginRefused(
                f"unknown hook {caller.name!r}"
                + (f", did you mean {near[0]!r}?" if near else f"; known: {', '.join(sorted(known))}.")
                + " If it is right, the plugin needs a newer computekit, or another plugin that declares the hook"
            )

    @contextmanager
    def guarding(self, item: object, during: str) -> Iterator[None]:
        """Whatever goes wrong with ``item`` in the context becomes a `Failure` of the plugin that contributed it."""
        with self.guarded(*self._origin(item)[:3], during=during), self.contained(self._origin(item), during):
            yield


_current: Host | None = None
_discovering = False


def current() -> Host:
    """The host of this process: every plugin that is installed and allowed, found when first asked for.

    Raises PluginRefused in a plugin that asks while it is being imported: the others are not there yet.
    """
    global _current, _discovering
    if _current is None:
        if _discovering:
            raise PluginRefused("it asks for other plugins while it is being imported; do that in a function")
        _discovering = True
        try:
            _current = Host.discover()
        finally:
            _discovering = False
    return _current


@contextmanager
def using(host: Host) -> Iterator[Host]:
    """Make ``host`` the current one for a while; for tests and for programs that embed computekit."""
    global _current
    before, _current = _current, host
    try:
        yield host
    finally:
        _current = before


def title(hook: str) -> str:
    """A hook's name for people: "quantization schemes"."""
    return hook.removeprefix(f"{hookspecs.PROJECT}_").replace("_", " ")


def _builtin() -> LoadedPlugin:
    from . import __version__, builtin

    return LoadedPlugin("computekit", FIRST_PARTY, __version__, builtin)
