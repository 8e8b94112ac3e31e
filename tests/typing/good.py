"""A plugin that a type checker must accept."""

from __future__ import annotations

from collections.abc import Iterable

import pluggy

import computekit
from computekit import hookspecs, implements


@implements(hookspecs.computekit_addhooks)
def my_hooks(manager: pluggy.PluginManager) -> None: ...


@implements(hookspecs.computekit_steps)
def my_steps() -> list[computekit.Step]:
    return []


@implements(hookspecs.computekit_columns)
def my_columns() -> tuple[computekit.Column, ...]:
    return ()


@implements(hookspecs.computekit_datasets)
def my_datasets() -> Iterable[computekit.Dataset]:
    yield from ()


@implements(hookspecs.computekit_addhooks)
def leaves_out_the_argument() -> None: ...


class MySpecs:
    @staticmethod
    @computekit.hookspec
    def mine_flavours(kind: str, size: int) -> Iterable[str]:
        """A hook of one's own."""
        return ()


@implements(MySpecs.mine_flavours)
def my_flavours(kind: str, size: int) -> list[str]:
    return [kind] * size
