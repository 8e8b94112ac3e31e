"""``computekit cost``: what a measured model costs to serve and to train, in money, energy and carbon."""

from __future__ import annotations

import computekit


@computekit.hookimpl
def computekit_commands() -> list[computekit.Command]:
    from .command import cost

    return [computekit.Command(cost)]


@computekit.hookimpl
def computekit_steps() -> list[computekit.Step]:
    from .command import price

    return [computekit.Step("cost", price, takes="records", gives="record", words=("cost", "price"))]


@computekit.hookimpl
def computekit_columns() -> list[computekit.Column]:
    return [
        computekit.Column("cost_usd_per_million", "cost / million", "USD", 1.0, 3, "lower", pareto=True, order=70),
        computekit.Column("energy_wh_per_million", "energy / million", "Wh", 1.0, 3, "lower", order=71),
        computekit.Column("carbon_kg_per_million", "carbon / million", "gCO2e", 1e-3, 3, "lower", order=72),
        computekit.Column("training_cost_usd", "training cost", "USD", 1.0, 3, "lower", order=73),
        computekit.Column("training_energy_wh", "training energy", "Wh", 1.0, 3, "lower", order=74),
        computekit.Column("training_carbon_kg", "training carbon", "gCO2e", 1e-3, 3, "lower", order=75),
    ]
