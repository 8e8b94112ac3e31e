"""Finding plugins and importing each one guarded: which entry points there are, which may load, and what went wrong.

``COMPUTEKIT_ALLOW_PLUGINS=quantize,computekit-ternary==0.2`` loads exactly the plugins listed (by plugin or
distribution name, a version may be pinned); ``COMPUTEKIT_DISABLE_PLUGINS=a,b`` leaves some out. Both are read before
anything is imported.
"""

from __future__ import annotations

import importlib.metadata
import inspect
import os
import re
import sys
import time
import types
import warnings
from pathlib import Path
from typing import NamedTuple, TypeVar

import pluggy

from . import hookspecs
from .errors import ComputekitError, PluginDeprecation
from .verbs import API_VERSION

M = TypeVar("M", bound=pluggy.PluginManager)

GROUP = "computekit"
FIRST_PARTY = "computekit"
HEAVY = ("torch", "numpy", "pandas", "matplotlib", "pydantic", "snakemake", "scipy", "sklearn", "transformers",
         "onnx", "onnxruntime", "openvino", "tabulate", "tqdm", "psutil")  # fmt: skip
"""Modules that no plugin may import when it is imported: each costs more than the whole rest of a start."""


class PluginRefused(ComputekitError):
    """A plugin does not keep to the contract; the message says how."""


class LoadedPlugin(NamedTuple):
    """A plugin that was imported: its entry point, where it comes from, what its import cost and brought along.

    ``effects`` is what its import did to the process, in words (`containment`).
    """

    name: str
    distribution: str
    version: str
    plugin: object
    import_s: float = 0.0
    heavy: tuple[str, ...] = ()
    printed: str = ""
    effects: tuple[str, ...] = ()

    @property
    def first_party(self) -> bool:
        return self.distribution == FIRST_PARTY


class Failure(NamedTuple):
    """A plugin that was not loaded, or (``loaded``) one of its contributions that cannot be used, and why."""

    name: str
    distribution: str
    version: str
    reason: str
    error: BaseException | None = None
    loaded: bool = False


class Found(NamedTuple):
    """An entry point and the distribution that declares it."""

    entry_point: importlib.metadata.EntryPoint
    distribution: str
    version: str

    @property
    def name(self) -> str:
        return self.entry_point.name

    @property
    def names(self) -> tuple[str, str]:
        """What a list of allowed or disabled plugins may call it, normalized: its own name or its distribution's."""
        return (normalized(self.name), normalized(self.distribution))


class Policy(NamedTuple):
    """Which plugins may load. ``allowed`` is None when all may; else (name, version or "") pairs."""

    allowed: tuple[tuple[str, str], ...] | None = None
    disabled: frozenset[str] = frozenset()

    @classmethod
    def from_environment(cls) -> Policy:
        """``COMPUTEKIT_ALLOW_PLUGINS`` and ``COMPUTEKIT_DISABLE_PLUGINS``; an unset list means no restriction."""
        allow = os.environ.get("COMPUTEKIT_ALLOW_PLUGINS")
        disable = os.environ.get("COMPUTEKIT_DISABLE_PLUGINS", "")
        return cls(None if allow is None else parse_allowed(allow), frozenset(map(normalized, _items(disable))))

    def refusal(self, found: Found) -> str:
        """Why ``found`` may not load, or an empty string."""
        if self.disabled.intersection(found.names):
            return "disabled by COMPUTEKIT_DISABLE_PLUGINS"
        if self.allowed is None:
            return ""
        versions = [version for name, version in self.allowed if name in found.names]
        if not versions:
            return "not in the list of allowed plugins"
        if "" in versions or found.version in versions:
            return ""
        return f"version {found.version} is not the allowed one, {' or '.join(versions)}"

    def unmet(self, installed: list[Found]) -> list[Failure]:
        """The allowed (name, version) pairs that nothing installed answers to, and why."""
        failures = []
        for name, version in self.allowed or ():
            there = {found.version for found in installed if name in found.names}
            if not re.fullmatch(r"[a-z0-9-]+", name):
                reason = "it is no name: a list of allowed plugins holds NAME or NAME==VERSION"
                failures.append(Failure(name, name, version, reason))
            elif not there:
                failures.append(Failure(name, name, version, "it is allowed, but not installed"))
            elif version and version not in there:
                reason = f"version {version} is allowed, but {' and '.join(sorted(there))} is installed"
                failures.append(Failure(name, name, version, reason))
        return failures


def parse_allowed(text: str) -> tuple[tuple[str, str], ...]:
    """``a,b==1.0`` as (name, version or "") pairs."""
    pairs = [item.partition("==") for item in _items(text)]
    return tuple((normalized(name.strip()), version.strip()) for name, _, version in pairs)


def find() -> list[Found]:
    """Installed entry points: first-party ones first, then by name, so that the order never depends on the disk."""
    identities: dict[int, tuple[str, str]] = {}
    found = []
    for entry_point in importlib.metadata.entry_points(group=GROUP):
        if entry_point.dist is None:
            found.append(Found(entry_point, "?", "?"))
            continue
        key = id(entry_point.dist)
        if key not in identities:
            identities[key] = _identity(entry_point.dist)
        found.append(Found(entry_point, *identities[key]))
    return sorted(found, key=lambda f: (f.distribution != FIRST_PARTY, f.name, f.distribution))


def load(found: Found) -> LoadedPlugin:
    """Import a plugin. What it prints, and what it does to the process, is caught and noted (`containment`)."""
    printed, effects = "", list[str]()
    before = set(sys.modules)
    start = time.perf_counter()
    if found.distribution == FIRST_PARTY:
        plugin = found.entry_point.load()
    else:
        from .containment import contained

        start = time.perf_counter()
        with contained() as containment:
            plugin = found.entry_point.load()
        printed, effects = containment.printed, containment.effects
    took = time.perf_counter() - start
    heavy = tuple(name for name in HEAVY if name in sys.modules and name not in before)
    return LoadedPlugin(found.name, found.distribution, found.version, plugin, took, heavy, printed, tuple(effects))


class Declarations(pluggy.PluginManager):
    """Remembers what hooks were declared with it."""

    def __init__(self, project_name: str) -> None:
        super().__init__(project_name)
        self.declared: list[types.ModuleType | type] = []

    def add_hookspecs(self, module_or_class: types.ModuleType | type) -> None:
        super().add_hookspecs(module_or_class)
        self.declared.append(module_or_class)


def manager(kind: type[M]) -> M:
    """A manager that knows the host's hooks, and tells each call of one if ``COMPUTEKIT_TRACE`` asks for it."""
    manager = kind(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    if os.environ.get("COMPUTEKIT_TRACE", "") not in ("", "0"):
        manager.trace.root.setwriter(lambda line: sys.stderr.write(line))
        manager.enable_tracing()
    return manager


def register(manager: pluggy.PluginManager, loaded: LoadedPlugin) -> list[str]:
    """Register a plugin whose hooks fit; returns what it uses that is deprecated.

    Raises:
        PluginRefused: wrong API version, an unknown hook, or a hook with unknown arguments.
    """
    if type(loaded.plugin).__hash__ is None:
        raise PluginRefused(f"the plugin is a {type(loaded.plugin).__name__}, which cannot be hashed; use a module")
    check_api(loaded.plugin)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", PluginDeprecation)
        try:
            manager.register(loaded.plugin, name=loaded.name)
        except pluggy.PluginValidationError as error:
            raise PluginRefused(_mismatch(manager, loaded.plugin) or " ".join(str(error).split())) from error
    return [str(warning.message) for warning in caught]


def unmarked(manager: pluggy.PluginManager, plugin: object) -> list[str]:
    """Functions of a module that are called like hooks, but that nobody marked, so that they are never called."""
    return (
        [
            name
            for name, value in vars(plugin).items()
            if name in vars(manager.hook)
            and isinstance(value, types.FunctionType)
            and value.__module__ == getattr(plugin, "__name__", None)
            and manager.parse_hookimpl_opts(plugin, name) is None
            and not hasattr(value, f"{manager.project_name}_spec")
        ]
        if isinstance(plugin, types.ModuleType)
        else []
    )


def _mismatch(manager: pluggy.PluginManager, plugin: object) -> str:
    """Which hook of ``plugin`` asks for an argument that is not passed here; empty if it is not that."""
    for name in dir(plugin):
        options = manager.parse_hookimpl_opts(plugin, name)
        hook = (options.get("specname") or name) if options else ""
        caller = getattr(manager.hook, hook, None)
        if caller is None or caller.spec is None:
            continue
        for argument in inspect.signature(getattr(plugin, name)).parameters:
            if argument not in caller.spec.argnames:
                passed = ", ".join(caller.spec.argnames) or "none"
                return f"needs a newer computekit: {hook} has no argument {argument!r} here (it has: {passed})"
    return ""


def check_api(plugin: object) -> None:
    """Refuse a plugin whose ``COMPUTEKIT_API`` (a number, or a (lowest, highest) pair) excludes this version."""
    declared = getattr(plugin, "COMPUTEKIT_API", None)
    if declared is None:
        return
    pair = declared if isinstance(declared, tuple) else (declared, None)
    if len(pair) != 2 or not isinstance(pair[0], int) or not isinstance(pair[1], (int, type(None))):
        raise PluginRefused(f"COMPUTEKIT_API is {declared!r}; it must be a number or a (lowest, highest) pair")
    lowest, highest = pair
    if highest is not None and highest < lowest:
        raise PluginRefused(f"COMPUTEKIT_API is {declared!r}; the lowest version comes first")
    if lowest > API_VERSION:
        raise PluginRefused(f"needs a newer computekit: plugin API {lowest}, this one has {API_VERSION}")
    if highest is not None and highest < API_VERSION:
        raise PluginRefused(
            f"is too old for this computekit: it supports plugin API up to {highest}, this one has {API_VERSION}; "
            "upgrade the plugin"
        )


def describe(error: BaseException) -> str:
    """One line about whatever a plugin threw."""
    if isinstance(error, SystemExit):
        return f"it called sys.exit({error.code!r})"
    try:
        text = str(error)
    except Exception:  # a plugin's own exception may fail even at this
        text = ""
    if isinstance(error, ComputekitError):
        return " ".join(text.split())
    first_line = (text.splitlines() or [""])[0]
    return f"{type(error).__name__}: {first_line}" if first_line else type(error).__name__


def source_folder(plugin: object) -> Path | None:
    """Where the code of a plugin lies: the folder of its top-level package, or the file of a single module."""
    name = plugin.__name__ if isinstance(plugin, types.ModuleType) else type(plugin).__module__
    for candidate in (name.partition(".")[0], name):
        file = getattr(sys.modules.get(candidate), "__file__", None)
        if file is not None:
            path = Path(file)
            return path.parent if path.name == "__init__.py" else path
    return None


def normalized(distribution: str) -> str:
    """A distribution's name as package indexes compare it: lower case, runs of ``-_.`` as one dash."""
    return re.sub(r"[-_.]+", "-", distribution).lower()


def _items(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


def _identity(distribution: importlib.metadata.Distribution) -> tuple[str, str]:
    """Name and version. Read from the head of the metadata: ``.metadata`` parses all of it, at 5 ms a plugin."""
    head = (distribution.read_text("METADATA") or distribution.read_text("PKG-INFO") or "").split("\n\n", 1)[0]
    name = re.search(r"^Name: *(.+)$", head, re.MULTILINE)
    version = re.search(r"^Version: *(.+)$", head, re.MULTILINE)
    return (name[1].strip() if name else "?", version[1].strip() if version else "?")
