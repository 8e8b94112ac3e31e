"""``--activations static``: which layers compute on fixed grids, and the grids, into the decisions of a plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

import computekit

if TYPE_CHECKING:
    from torch import nn

    from computekit.models import ModelFile

    from .flow import Job
    from .plan import Decision

_BATCH = 32
_BEST = "mse"  # of the observers, on most of what was measured: see docs/quantize.md

observer = click.option(
    "--observer", type=click.Choice(["min-max", "percentile", "mse", "entropy"]),
    help=f"How --activations static chooses the range of a layer's values from those that it saw.  [default: {_BEST}]",
)  # fmt: skip


def calibrated(run: computekit.StepRun, job: Job, source: ModelFile, decisions: list[Decision]) -> list[Decision]:
    """The decisions with the grids that the layers' activations get; where a layer cannot have any, it stays in floats.

    Raises:
        ComputekitError: there is no code to run, or it cannot take the data.
    """
    from computekit.models import int8_static

    from . import calibration, samples, static

    if int8_static.available():
        run.note(
            f"{int8_static.available()}: here the file computes in floats, and the measured metric is that of floats"
        )
    data = job.calibration.load(job.goal.data, "--activations static", job.model, job.goal.window)
    module, _ = samples.load(job)
    layers = _layers(module, source, decisions)
    inputs = calibration.samples(data, job.calibration.samples)
    batches = calibration.batches(inputs, module, _BATCH)
    name = job.observer or _BEST
    with run.progress(-(-len(inputs) // _BATCH), "calibrating", "batch") as bar:
        grids, untraced = static.calibrate(module, list(layers), _counted(batches, bar), name)
    run.details["calibration"] = {"data": data.describe(), "samples": len(inputs), "observer": name}
    if untraced:
        names = ", ".join(path or type(module).__name__ for path in untraced[:3])
        run.note(f"{names}: code that cannot be traced, so its layers compute one by one, with floats in between")
    by_name = {layers[path]: each for path, each in grids.items()}
    found = [_with_grids(decision, by_name) for decision in decisions]
    floats = Counter(d.role for d in found if d.quantized and d.treatment.activations == "float")
    if floats:
        run.note("in floats: " + ", ".join(f"{count} {role} weights" for role, count in sorted(floats.items())))
    return found


def _layers(module: nn.Module, source: ModelFile, decisions: list[Decision]) -> dict[str, str]:
    """The layers that can compute on grids: their path, and the name that the file gives to their weight."""
    from computekit.models.modules import match_names

    from . import static

    names, _ = match_names(module.state_dict(), source)
    quantized = {decision.info.name for decision in decisions if decision.quantized and len(decision.names) == 1}
    weights = {path: names.get(f"{path}.weight" if path else "weight") for path in static.layers_of(module)}
    return {path: name for path, name in weights.items() if name in quantized}


def _with_grids(decision: Decision, grids: Mapping[str, Any]) -> Decision:
    if not decision.quantized:
        return decision
    found = grids.get(decision.info.name)
    return decision.treat(decision.treatment.storage) if found is None else replace(decision, grids=found)


def _counted(batches: Any, bar: Any) -> Any:
    for batch in batches:
        yield batch
        bar.update()
