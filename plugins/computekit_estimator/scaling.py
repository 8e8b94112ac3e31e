"""Scaling laws: loss as a function of parameters N and tokens D, and the best split of a compute budget.

The law is L(N, D) = E + A / N^alpha + B / D^beta (Hoffmann et al. 2022, arXiv:2203.15556, approach 3). Training costs
6 N D FLOPs; serving a token costs 2 N (Kaplan et al. 2020, arXiv:2001.08361), which moves the optimum to smaller models
trained longer (Sardana et al. 2023, arXiv:2401.00448).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .errors import CannotPredict

Array = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class Law:
    """Coefficients of L(N, D), loss in nats per token."""

    floor: float
    a: float
    alpha: float
    b: float
    beta: float
    source: str

    def loss(self, parameters: Array | float, tokens: Array | float) -> Any:
        """Predicted loss of a model of ``parameters`` after ``tokens``."""
        return self.floor + self.a / np.power(parameters, self.alpha) + self.b / np.power(tokens, self.beta)


LAWS = {
    "besiroglu": Law(1.8172, 482.01, 0.3478, 2085.43, 0.3658, "Besiroglu et al. 2024, arXiv:2404.10102"),
    "hoffmann": Law(1.6934, 406.4, 0.3392, 410.7, 0.2849, "Hoffmann et al. 2022, arXiv:2203.15556, approach 3"),
}
"""Published fits; the first corrects the second, whose published digits do not follow from its own data."""


@dataclass(frozen=True)
class Optimum:
    """The split of a budget: parameters, training tokens, loss, and FLOPs of training and of serving."""

    parameters: float
    tokens: float
    loss: float
    train_flops: float
    serve_flops: float


def optimum(law: Law, budget: float, served_tokens: float = 0.0) -> Optimum:
    """The lowest loss for ``budget`` FLOPs of training and of serving ``served_tokens`` together.

    Raises:
        CannotPredict: serving alone takes the budget even of the smallest model.
    """
    sizes = np.logspace(5, 14, 20_001)
    tokens = (budget / sizes - 2 * served_tokens) / 6
    possible = tokens > 1
    if not possible.any():
        raise CannotPredict(f"{budget:.3g} FLOPs do not even serve {served_tokens:.3g} tokens")
    losses = np.where(possible, law.loss(sizes, np.where(possible, tokens, 1.0)), np.inf)
    best = int(np.argmin(losses))
    size, many = float(sizes[best]), float(tokens[best])
    return Optimum(size, many, float(losses[best]), 6 * size * many, 2 * size * served_tokens)


def fit(parameters: Array, tokens: Array, losses: Array) -> Law:
    """Least squares of log loss: exponents on a grid that narrows, the other three coefficients linear for each.

    Raises:
        CannotPredict: fewer than six runs, or too few different sizes to tell the coefficients apart.
    """
    if len(losses) < 6:
        raise CannotPredict(f"a fit of five coefficients needs at least six runs, not {len(losses)}")
    if len(np.unique(parameters)) < 2 or len(np.unique(tokens)) < 2:
        raise CannotPredict("the runs need at least two different numbers of parameters and of tokens")
    alphas, betas = np.linspace(0.05, 1.0, 20), np.linspace(0.05, 1.0, 20)
    for _ in range(4):
        tried = [(_at(parameters, tokens, losses, a, b), a, b) for a in alphas for b in betas]
        (_, alpha, beta) = min(tried, key=lambda item: item[0][0])
        alphas, betas = _around(alpha, alphas), _around(beta, betas)
    _, coefficients = _at(parameters, tokens, losses, alpha, beta)
    floor, a, b = (float(value) for value in coefficients)
    return Law(floor, a, float(alpha), b, float(beta), f"fit of {len(losses)} runs")


def bootstrap(parameters: Array, tokens: Array, losses: Array, seed: int, times: int = 100) -> list[Law]:
    """Fits of resampled runs, for intervals; resamples that cannot be fitted are left out."""
    random = np.random.default_rng(seed)
    laws = []
    for _ in range(times):
        pick = random.integers(0, len(losses), len(losses))
        try:
            laws.append(fit(parameters[pick], tokens[pick], losses[pick]))
        except CannotPredict:
            continue
    return laws


def _at(parameters: Array, tokens: Array, losses: Array, alpha: float, beta: float) -> tuple[float, Array]:
    """Squared error of log loss, and the best non-negative (E, A, B), for given exponents."""
    columns = np.stack([np.ones_like(losses), parameters**-alpha, tokens**-beta], axis=1) / losses[:, None]
    scale = np.linalg.norm(columns, axis=0)
    solved, *_ = np.linalg.lstsq(columns / scale, np.ones_like(losses), rcond=None)
    coefficients = np.maximum(solved / scale, 0.0)
    predicted = columns @ coefficients
    error = float(np.sum(np.log(np.maximum(predicted, 1e-12)) ** 2))
    return error, coefficients


def _around(best: float, grid: Array) -> Array:
    step = float(grid[1] - grid[0])
    return np.linspace(max(best - step, 0.01), best + step, len(grid))
