"""``computekit cost size``: a smaller model trained for longer costs less over its life."""

from __future__ import annotations

import math
from dataclasses import dataclass

import click

import computekit
from computekit import ComputekitError, options

from .parameters import POSITIVE

# Fit of Hoffmann et al. 2022 (approach 3) with three digits, as Sardana et al. 2024 need them: with the rounded
# exponents 0.34 and 0.28 the saving of their example comes out at half.
IRREDUCIBLE, A, B, ALPHA, BETA = 1.69, 406.4, 410.7, 0.336, 0.283
SOURCE = "Sardana et al. 2024, arXiv 2401.00448, with the loss of Hoffmann et al. 2022"


@dataclass(frozen=True)
class Life:
    """A dense transformer of so many parameters, trained and then used on so many tokens."""

    parameters: float
    training_tokens: float
    inference_tokens: float

    @property
    def training_flops(self) -> float:
        """6 N D (Kaplan et al. 2020)."""
        return 6 * self.parameters * self.training_tokens

    @property
    def inference_flops(self) -> float:
        """2 N for each token, read or written."""
        return 2 * self.parameters * self.inference_tokens

    @property
    def flops(self) -> float:
        return self.training_flops + self.inference_flops


def loss(parameters: float, tokens: float) -> float:
    """Cross-entropy in nats per token: E + A / N^alpha + B / D^beta."""
    return float(IRREDUCIBLE + A / parameters**ALPHA + B / tokens**BETA)


def optimal_tokens(parameters: float) -> float:
    """Training tokens for which this size is the best use of the training compute."""
    return float((BETA * B * parameters**ALPHA / (ALPHA * A)) ** (1 / BETA))


def tokens_for(parameters: float, wanted: float) -> float:
    """Training tokens that bring this size to a loss; infinite for a model too small to reach it."""
    rest = wanted - IRREDUCIBLE - A / parameters**ALPHA
    return float((B / rest) ** (1 / BETA)) if rest > 0 else math.inf


def cheapest(parameters: float, inference_tokens: float, training_tokens: float | None = None) -> tuple[Life, Life]:
    """A model as given (training-optimal unless ``training_tokens`` says otherwise), and the model of the same loss
    with the least compute for training and inference together."""
    tokens = optimal_tokens(parameters) if training_tokens is None else training_tokens
    given = Life(parameters, tokens, inference_tokens)
    wanted = loss(parameters, tokens)

    def life(size: float) -> Life:
        return Life(size, tokens_for(size, wanted), inference_tokens)

    low, high = math.log(parameters) - 6, math.log(parameters) + 3
    golden = (math.sqrt(5) - 1) / 2
    for _ in range(80):  # the compute has one minimum in the size
        left, right = high - golden * (high - low), low + golden * (high - low)
        if life(math.exp(left)).flops < life(math.exp(right)).flops:
            high = right
        else:
            low = left
    return given, life(math.exp((low + high) / 2))


@click.command()
@click.option("--parameters", type=POSITIVE, required=True, help="Parameters of the model you have in mind, e.g. 13e9.")
@click.option("--inference-tokens", type=POSITIVE, required=True, help="Tokens it will read and write in its life.")
@click.option("--training-tokens", type=POSITIVE, help="Its training tokens.  [default: compute-optimal]")
@options.step
def size(run: computekit.StepRun, parameters: float, inference_tokens: float, training_tokens: float | None) -> None:
    """Find the size of a dense language model that reaches the same loss with the least compute over its life, training
    and inference together: the more it will be used, the smaller it should be and the longer it should train.

    \b
    Example:
      computekit cost size --parameters 13e9 --inference-tokens 2e12
    """
    from computekit.records import Quantity

    given, best = cheapest(parameters, inference_tokens, training_tokens)
    if not math.isfinite(best.flops):
        raise ComputekitError(f"no size reaches the loss of {parameters:g} parameters and {training_tokens:g} tokens")
    for label, life in (("as given", given), ("cheapest", best)):
        row = run.row(label)
        row.quantities["parameters"] = Quantity(value=round(life.parameters))
        row.quantities["training_tokens"] = Quantity(value=round(life.training_tokens))
        row.quantities["training_share"] = Quantity(value=life.training_flops / life.flops, unit="1")
        row.quantities["life_flops"] = Quantity(value=life.flops, unit="FLOP", method=f"6 N D + 2 N T; {SOURCE}")
        row.quantities["saving"] = Quantity(value=1 - life.flops / given.flops, unit="1", method="against as given")
    run.note(
        "Compute only: inference costs more per FLOP than training, so the cheapest model is smaller still in money."
    )
