"""The train plugin: ``computekit train`` trains a model from scratch."""

from __future__ import annotations

import computekit

from .command import train


@computekit.hookimpl
def computekit_steps() -> list[computekit.Step]:
    return [computekit.Step("train", train, takes="nothing", gives="model")]
