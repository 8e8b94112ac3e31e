"""What a training run is asked to do, and the command-line options that say it."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from .. import options

if TYPE_CHECKING:
    from ..datasets import Data

PRECISIONS = ("fp32", "bf16", "fp16")
OPTIMIZERS = {"adamw": (3e-3, 0.05), "sgd": (0.1, 5e-4), "lamb": (2e-2, 0.05)}
"""Optimizers, each with its default peak learning rate and weight decay (coupled with the gradient in SGD)."""


@dataclass(frozen=True)
class Recipe:
    """How to train. ``None`` means "what suits the data and the optimizer"; `resolved` fills those in.

    The learning rate rises linearly from 0 to ``lr`` over the first ``warmup`` fraction of the steps and then falls
    to 0 along a cosine (Loshchilov and Hutter 2017). Gradients are clipped to the norm ``clip`` (0: not at all).
    ``augment`` "shift" moves images by up to a twelfth of their size in random directions (by default images of at
    least 16 pixels: in smaller ones a pixel is too much). Training stops early when
    validation has not improved for ``patience`` epochs (0: never); the best epoch's weights are kept in any case.
    """

    epochs: int | None = None
    lr: float | None = None
    batch_size: int | None = None
    optimizer: str = "adamw"
    weight_decay: float | None = None
    warmup: float = 0.1
    clip: float = 1.0
    precision: str = "fp32"
    augment: str | None = None
    patience: int = 0

    def resolved(self, data: Data) -> Recipe:
        """A copy without any ``None``."""
        large_images = len(data.sample_shape) == 3 and min(data.sample_shape[1:]) >= 16
        lr, weight_decay = OPTIMIZERS[self.optimizer]
        text = data.task == "language-modeling"
        return dataclasses.replace(
            self,
            epochs=self.epochs or (3 if text else 15),
            batch_size=self.batch_size or (8 if text else 64),
            lr=self.lr or lr,
            weight_decay=weight_decay if self.weight_decay is None else self.weight_decay,
            augment=self.augment or ("shift" if large_images else "none"),
        )


def recipe_options(**defaults: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add the options of training to a command, whose function gets them as one argument ``recipe``.

    ``defaults`` are fields of `Recipe` for which this command has defaults of its own.
    """
    base = Recipe(**defaults)

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def command(*args: Any, **kwargs: Any) -> Any:
            own = {field.name: kwargs.pop(field.name) for field in dataclasses.fields(Recipe) if field.name in kwargs}
            return function(*args, recipe=dataclasses.replace(base, **own), **kwargs)

        decorated: Callable[..., Any] = command
        for option in reversed(_options(base)):
            decorated = option(decorated)
        return decorated

    return decorate


def _options(base: Recipe) -> list[Callable[[Callable[..., Any]], Callable[..., Any]]]:
    rates = ", ".join(f"{name} {rate:g}" for name, (rate, _) in OPTIMIZERS.items())
    decays = ", ".join(f"{name} {decay:g}" for name, (_, decay) in OPTIMIZERS.items())
    epochs = "" if base.epochs else "  [default: 15, 3 for text]"
    batch_size = "" if base.batch_size else "  [default: 64, 8 for text]"
    lr = "" if base.lr else f"  [default: {rates}]"
    share = options.Number(at_least=0, at_most=1)
    positive = options.Number(above=0)
    return [
        click.option("--epochs", type=click.IntRange(1), default=base.epochs, show_default=bool(base.epochs),
                     help=f"Passes over the training split.{epochs}"),
        click.option("--batch-size", type=click.IntRange(1), default=base.batch_size,
                     show_default=bool(base.batch_size), help=f"Samples per step.{batch_size}"),
        click.option("--lr", type=positive, default=base.lr, show_default=bool(base.lr),
                     help=f"Peak learning rate.{lr}"),
        click.option("--optimizer", type=click.Choice(list(OPTIMIZERS)), default=base.optimizer, show_default=True,
                     help="sgd has Nesterov momentum 0.9; lamb is for large batches."),
        click.option("--weight-decay", type=options.Number(at_least=0), default=base.weight_decay,
                     help=f"Decay of weights; never of biases and norms.  [default: {decays}]"),
        click.option("--warmup", type=share, default=base.warmup, show_default=True,
                     help="Fraction of all steps in which the learning rate rises."),
        click.option("--clip", type=options.Number(at_least=0), default=base.clip, show_default=True,
                     help="Largest gradient norm; 0 does not clip."),
        click.option("--precision", type=click.Choice(PRECISIONS), default=base.precision, show_default=True,
                     help="Type of the computation; the weights stay fp32."),
        click.option("--augment", type=click.Choice(["shift", "none"]), default=base.augment,
                     help="Random changes of training images.  [default: shift for images of 16 pixels or more]"),
        click.option("--patience", type=click.IntRange(0), default=base.patience, show_default=True,
                     help="Stop after so many epochs without a better validation result; 0 never stops early."),
    ]  # fmt: skip
