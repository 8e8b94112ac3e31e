"""The contract kit, run on every first-party plugin: what is asked of others, ours keep too.

A new plugin is covered as soon as it is installed; a step that needs more than its default arguments gets them here.
"""

from __future__ import annotations

from computekit import Step, loading
from computekit.testing import PluginContract

ARGUMENTS = {
    "train": ["--arch", "mlp", "--data", "digits", "--epochs", "1"],
    "distill": ["--student", "mlp", "--epochs", "1"],
    "quantize": ["--int8"],
    "benchmark": ["--time-budget", "1"],
    "cost": ["--price-usd-per-hour", "1"],
}


class FirstParty(PluginContract):
    """Contract of one of our own plugins."""

    def arguments(self, step: Step) -> list[str]:
        return [*super().arguments(step), *ARGUMENTS.get(step.name, [])]


for found in loading.find():
    if found.distribution == loading.FIRST_PARTY:
        name = f"Test{found.name.title()}"
        globals()[name] = type(name, (FirstParty,), {"plugin": found.name, "__module__": __name__})
