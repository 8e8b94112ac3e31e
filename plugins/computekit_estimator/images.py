"""Rows of image models that are named and have no dimensions: built by `vision`, timed by the roofline of `generic`."""

from __future__ import annotations

import re
from typing import Any

from . import generic, published, spelling
from .constants import Constants
from .errors import CannotPredict
from .runs import Run

_SIDE = 224


def named(run: Run) -> bool:
    """Whether the row is of an image model by name, without a transformer's dimensions."""
    from . import vision

    return not run.text("hidden") and vision.known(_name(run))


def _name(run: Run) -> str:
    words = run.text("model").split()
    return words[-1] if words else ""


def side(run: Run) -> int:
    """Pixels of a side: the sequence column, else what the name ends in, else 224."""
    written = re.search(r"_(\d{3})$", _name(run))
    return run.whole("seq", int(written[1]) if written else _SIDE)


def model(run: Run) -> Any:
    """The module, on the meta device, as `vision` knows it by name."""
    import torch

    from . import vision

    name = _name(run)
    with torch.device("meta"):
        known = vision.build(name)
    if known is None:
        raise CannotPredict(f"the layers of an image model called {name!r} are not known")
    return known.eval()


def count(run: Run, backward: bool = False) -> Any:
    """The cost of one image."""
    import torch

    from computekit import flops

    return flops.count(model(run), torch.zeros(1, 3, side(run), side(run)), backward=backward)


def batch(run: Run) -> int:
    """Images of one step on one device."""
    devices = published.devices_of(run) or 1
    return run.whole("infer_batch", run.whole("microbatch", max(run.whole("global_batch", 1) // devices, 1)))


def seconds(run: Run, c: Constants) -> float:
    """One step: a forward pass where the row has a batch of inference, else forward, backward and the optimizer."""
    gpu = published.gpu_of(run)
    precision = spelling.precision(run.text("precision") or "fp32")
    training = not run.number("infer_batch") or "train" in run.kind.lower()
    cost = count(run, backward=training)
    passes = generic.passes(cost, gpu, precision, batch(run), c)
    if not training:
        return passes.forward
    weights = sum(parameter.numel() for parameter in model(run).parameters())
    optimizer = 50.0 * float(weights) / gpu.traffic_rate(c)
    return passes.forward + passes.backward + optimizer
