"""Recipes: defaults that suit the data, and the options that say them."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from computekit import training
from computekit.datasets import from_text, load_data


def test_defaults_suit_the_data() -> None:
    text = from_text("t", b"abcd" * 100, "", window=8)
    recipe = training.Recipe()
    assert recipe.resolved(load_data("digits")).augment == "none"
    assert recipe.resolved(load_data("mnist5k")).augment == "shift"
    assert recipe.resolved(text).augment == "none"
    assert recipe.resolved(text).batch_size < recipe.resolved(load_data("digits")).batch_size
    assert recipe.resolved(text).weight_decay == 0.05
    assert training.Recipe(optimizer="sgd").resolved(text).weight_decay == 5e-4
    given = training.Recipe(epochs=3, lr=0.5, batch_size=7, augment="none", weight_decay=0.0)
    assert given.resolved(text) == given


@pytest.mark.parametrize("words", [[], ["--epochs", "2", "--lr", "0.5", "--optimizer", "sgd", "--precision", "bf16"]])
def test_options_become_one_recipe(words: list[str]) -> None:
    @click.command()
    @click.option("--mine", default=1)
    @training.recipe_options(epochs=7, lr=0.25)
    def command(mine: int, recipe: training.Recipe) -> None:
        click.echo(f"{mine} {recipe.epochs} {recipe.lr} {recipe.optimizer} {recipe.precision}")

    result = CliRunner().invoke(command, words)
    assert result.output.strip() == ("1 2 0.5 sgd bf16" if words else "1 7 0.25 adamw fp32")


@pytest.mark.parametrize("words", [["--lr", "0"], ["--epochs", "0"], ["--warmup", "2"], ["--precision", "fp8"]])
def test_values_that_make_no_sense_are_wrong_usage(words: list[str]) -> None:
    @click.command()
    @training.recipe_options()
    def command(recipe: training.Recipe) -> None: ...

    assert CliRunner().invoke(command, words).exit_code == 2
