"""Plugins that a type checker must refuse: each line that ends in ``# error`` is one mistake."""

from __future__ import annotations

from collections.abc import Iterable

import computekit
from computekit import hookspecs, implements


@implements(hookspecs.computekit_steps)  # error
def another_contract() -> list[computekit.Command]:
    return []


@implements(hookspecs.computekit_steps)  # error
def an_unknown_argument(theme: str) -> list[computekit.Step]:
    return []


@implements(hookspecs.computekit_addhooks)  # error
def an_argument_of_another_type(manager: int) -> None: ...


@implements(hookspecs.computekit_datasets)  # error
def no_list() -> computekit.Dataset:
    raise NotImplementedError


@implements(hookspecs.computekit_columns)  # error
def maybe_none() -> list[computekit.Column] | None:
    return None


@implements(hookspecs.computekit_step)  # error
def a_mistyped_hook() -> list[computekit.Step]:
    return []


class MySpecs:
    @staticmethod
    @computekit.hookspec
    def mine_flavours(kind: str) -> Iterable[str]:
        """A hook of one's own."""
        return ()


@implements(MySpecs.mine_flavours)  # error
def wrong_for_a_plugins_hook(kind: int) -> list[str]:
    return []
