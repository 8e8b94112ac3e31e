"""What a device is slow at: the types of 8-bit arithmetic that the catalog gives it no good rate for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import computekit

if TYPE_CHECKING:
    from computekit import Hardware

    from .plan import Treatment

_MUCH = 4
"""Times that one type must be slower than another before it is said."""


def remark(device: Hardware, values: str) -> str:
    """Why 8-bit ``values``, "int" or "float", are the wrong ones to compute with on ``device``; empty if not."""
    rates = {name: device.peak_flops.get(name) for name in ("int8", "fp8")}
    own, other = ("int8", "fp8") if values == "int" else ("fp8", "int8")
    mine, better = rates[own], rates[other]
    if mine is None:
        there = f"; {other} has {better:.3g} operations/s" if better else ""
        return f"the catalog knows no {own} rate of {device.name}{there}"
    if better and better > _MUCH * mine:
        slower = f"{device.name} computes {own} {better / mine:.0f} times slower than {other}"
        return f"{slower}: --scheme {other} runs faster there"
    return ""


def note(run: computekit.StepRun, treatment: Treatment) -> None:
    """Note it where the run's device is a GPU of the catalog that is slow at what the layers compute with."""
    import torch

    if treatment.activations == "float" or not torch.cuda.is_available() or run.device.type != "cuda":
        return
    from computekit import ComputekitError
    from computekit.catalog import find_hardware

    try:
        device = find_hardware(torch.cuda.get_device_name(run.device))
    except ComputekitError:  # a device that the catalog does not know has no rates to compare
        return
    if said := remark(device, treatment.scheme.values):
        run.note(said)
