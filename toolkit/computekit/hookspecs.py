"""Every hook of computekit. This file is the plugin manual: docs/plugins/hooks.md is generated from it.

A plugin is a module (or an object) named in the entry-point group ``computekit``. It marks the functions that
contribute something with `implements`, or with pluggy's own ``computekit.hookimpl``; each returns a list of the frozen
dataclasses in `computekit.contracts` and `computekit.verbs`. Hooks only ever gain arguments, and a plugin may leave out
any argument that it does not need.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Generic, ParamSpec, TypeVar

import pluggy

if TYPE_CHECKING:
    from .contracts import Architecture, Column, Dataset, Hardware, ModelFormat, Price, Runtime
    from .verbs import Command, Step

PROJECT = "computekit"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)

P = ParamSpec("P")
R = TypeVar("R")


class implements(Generic[P, R]):
    """Mark a function as the implementation of a hook, so that a type checker compares the two.

    ``@implements(hookspecs.computekit_steps)`` accepts only a function whose arguments and return type fit those of
    the hook; its own name does not matter. It serves the hooks that plugins declare just as well::

        @implements(computekit_quantize.schemes.computekit_quantization_schemes)
        def schemes() -> list[Scheme]: ...
    """

    def __init__(self, spec: Callable[P, R]) -> None:
        if not hasattr(spec, "__name__"):
            raise TypeError(
                f"implements() takes the hook itself, not {spec!r}: @implements(hookspecs.computekit_steps)"
            )
        self.spec = spec

    def __call__(self, function: Callable[P, R] | Callable[[], R]) -> Callable[..., R]:
        """Mark ``function`` as pluggy's ``hookimpl`` does; it may leave the hook's arguments out."""
        if isinstance(function, type) or not callable(function):
            raise TypeError(f"{self.spec.__name__} is implemented by a function, not by {function!r}")
        return hookimpl(function, specname=self.spec.__name__)


@hookspec
def computekit_commands() -> Iterable[Command]:  # type: ignore[empty-body]
    """Add subcommands.

    Example::

        @click.command()
        def hello() -> None:
            '''Say hello.'''
            click.echo("hello")

        @implements(hookspecs.computekit_commands)
        def commands() -> list[computekit.Command]:
            return [computekit.Command(hello)]
    """


@hookspec
def computekit_steps() -> Iterable[Step]:  # type: ignore[empty-body]
    """Add steps: subcommands that turn files into a file. A step is a command and a pipeline step at once.

    Example::

        @click.command()
        @computekit.options.model
        @computekit.options.step
        def ternary(run: computekit.StepRun, model: Path) -> None:
            '''Round every weight to -1, 0 or 1 times a scale.'''
            ...

        @implements(hookspecs.computekit_steps)
        def steps() -> list[computekit.Step]:
            return [computekit.Step("ternary", ternary, takes="model", gives="model")]
    """


@hookspec
def computekit_architectures() -> Iterable[Architecture]:  # type: ignore[empty-body]
    """Add model factories, usable as ``--arch NAME`` everywhere.

    Example::

        def build(classes: int = 10) -> "nn.Module":
            from torch import nn
            return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))

        @implements(hookspecs.computekit_architectures)
        def architectures() -> list[computekit.Architecture]:
            return [computekit.Architecture("linear", "one linear layer", build)]
    """


@hookspec
def computekit_datasets() -> Iterable[Dataset]:  # type: ignore[empty-body]
    """Add data sets, usable as ``--data NAME`` everywhere.

    Example::

        @implements(hookspecs.computekit_datasets)
        def datasets() -> list[computekit.Dataset]:
            return [computekit.Dataset("mine", "my images", load_mine)]
    """


@hookspec
def computekit_model_formats() -> Iterable[ModelFormat]:  # type: ignore[empty-body]
    """Add kinds of model file.

    Example::

        @implements(hookspecs.computekit_model_formats)
        def formats() -> list[computekit.ModelFormat]:
            return [computekit.ModelFormat("npz", "numpy archive", sniff, read, write)]
    """


@hookspec
def computekit_runtimes() -> Iterable[Runtime]:  # type: ignore[empty-body]
    """Add ways to run model files, for files whose metadata names one; the others run as torch modules.

    Example::

        def load(source: computekit.ModelFile, build: Callable[[], nn.Module]) -> nn.Module:
            return torch.compile(build())

        @implements(hookspecs.computekit_runtimes)
        def runtimes() -> list[computekit.Runtime]:
            return [computekit.Runtime("compiled", "torch.compile", load)]
    """


@hookspec
def computekit_hardware() -> Iterable[Hardware]:  # type: ignore[empty-body]
    """Add rows to the hardware catalog.

    Example::

        @implements(hookspecs.computekit_hardware)
        def hardware() -> list[computekit.Hardware]:
            return [computekit.Hardware("MyChip", "npu", {"bf16": 1e14}, 32e9, 1e12, "vendor sheet, page 3")]
    """


@hookspec
def computekit_prices() -> Iterable[Price]:  # type: ignore[empty-body]
    """Add rows to the price catalog.

    Example::

        @implements(hookspecs.computekit_prices)
        def prices() -> list[computekit.Price]:
            return [computekit.Price("us", "rack-1", "basement", 0.40, None, "2026-11-30", "our invoice")]
    """


@hookspec
def computekit_columns() -> Iterable[Column]:  # type: ignore[empty-body]
    """Add table columns for the quantities that your steps record.

    Example::

        @implements(hookspecs.computekit_columns)
        def columns() -> list[computekit.Column]:
            return [computekit.Column("sparsity", "sparsity", unit="%", scale=0.01, better="higher")]
    """


@hookspec
def computekit_addhooks(manager: pluggy.PluginManager) -> None:
    """Declare hooks of your own, so that other plugins can extend yours. Called once, before any other hook.

    Example::

        @implements(hookspecs.computekit_addhooks)
        def declare(manager: pluggy.PluginManager) -> None:
            manager.add_hookspecs(my_hookspecs)
    """
