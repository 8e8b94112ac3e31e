"""``computekit cost``: what a measured model costs to serve and to train, in money, energy and carbon."""

from __future__ import annotations

import computekit
from computekit import hookspecs, implements


@implements(hookspecs.computekit_commands)
def computekit_commands() -> list[computekit.Command]:
    summary = "Price models and runs: money, energy and carbon from records and dated list prices."
    cost = computekit.LazyCommand("cost", f"{__name__}.cli:cost", summary)
    return [computekit.Command(cost)]


@implements(hookspecs.computekit_steps)
def computekit_steps() -> list[computekit.Step]:
    price = computekit.LazyCommand("price", f"{__name__}.price:price", "Price the models of records.")
    return [computekit.Step("cost", price, takes="records", gives="record", words=("cost", "price"))]


@implements(hookspecs.computekit_columns)
def computekit_columns() -> list[computekit.Column]:
    column = computekit.Column
    return [
        column("cost_usd_per_million", "cost / million", "USD", better="lower", pareto=True, order=70),
        column("energy_wh_per_million", "energy / million", "Wh", better="lower", order=71),
        column("carbon_kg_per_million", "carbon / million", "gCO2e", 1e-3, better="lower", order=72),
        column("cost_usd_per_million_tokens", "cost / million tokens", "USD", better="lower", order=73),
        column("energy_wh_per_million_tokens", "energy / million tokens", "Wh", better="lower", order=73),
        column("carbon_kg_per_million_tokens", "carbon / million tokens", "gCO2e", 1e-3, better="lower", order=73),
        column("training_cost_usd", "training cost", "USD", better="lower", order=74),
        column("training_energy_wh", "training energy", "Wh", better="lower", order=75),
        column("training_carbon_kg", "training carbon", "gCO2e", 1e-3, better="lower", order=76),
        column("job_cost_usd", "job cost", "USD", digits=4, better="lower", order=76),
        column("saving", "saving", "%", 0.01, better="higher", order=77),
        column("wall_s", "wall time", "h", 3600.0, better="lower", order=78),
        column("waste", "time lost", "%", 0.01, better="lower", order=79),
        column("checkpoint_interval_s", "checkpoint every", "s", order=80),
        column("reserved_machines", "reserved", order=81),
        column("cost_usd_per_hour", "cost / hour", "USD", digits=4, better="lower", order=82),
        column("training_tokens", "training tokens", "G", 1e9, digits=4, order=61),
        column("life_flops", "compute of its life", "FLOP", digits=4, better="lower", order=62),
        column("training_share", "for training", "%", 0.01, order=63),
        column("capital_usd", "capital", "USD", digits=4, order=83),
        column("energy_share", "electricity", "%", 0.01, order=83),
        column("break_even_utilization", "own above", "%", 0.01, order=83),
        column("above_best", "above best", "%", 0.01, better="lower", order=83),
    ]
