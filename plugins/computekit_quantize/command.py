"""``computekit quantize``: the command line. Options of a topic come from the module of that topic; `flow` does it."""

from __future__ import annotations

from typing import Any

import click

import computekit
from computekit import options

from . import activations, calibration, flow, goal, plan, qat, race


@click.command(cls=options.Sectioned)
@options.model
@plan.request_options
@goal.goal_options
@calibration.calibration_options
@activations.observer
@qat.tuning_options
@race.race_options
@options.arch()
@options.trust_pickle
@click.option("--allow-noop", is_flag=True, help="Write the file even if little of it can be quantized.")
@click.option("--dry-run", is_flag=True, help="Show what would be done to which tensor, and write nothing.")
@options.step
def quantize(run: computekit.StepRun, arch: str | None, arch_args: dict[str, Any] | None, **asked: Any) -> int:
    """Store the weights of a model file in fewer bits: a file in, a smaller file of the same kind out.

    Linear, convolution and embedding weights become integers with a scale per output channel, held as plain tensors
    that torch.load(weights_only=True) and safetensors open anywhere. No code is needed: what each tensor is follows
    from its name, shape and neighbours, and everything else passes through untouched. computekit.load_into(module,
    FILE) gives a runnable module, computekit dequantize a file of floats.

    \b
    Example:
      computekit quantize --int8 model.pt
      computekit quantize --int8 model.pt --data digits --exclude 'head.*' -o small.pt
      computekit quantize --int8 --activations static --calibration digits model.pt
      computekit quantize --int4 model.pt --data digits --max-drop 0.5 --sensitivity
    """
    reference = computekit.ArchRef(arch, arch_args or {}) if arch else None
    return flow.carry_out(run, flow.Job(arch=reference, **asked))
