"""AWQ: the weights that meet large activations are scaled up before they are rounded, so that they lose less.

Lin, Tang, Tang, Yang, Chen, Wang, Xiao, Dang, Gan, Han 2023, "AWQ: Activation-aware Weight Quantization for LLM
Compression and Acceleration", arXiv:2306.00978, section 3.2: s = mean(|x|)^alpha per input channel, alpha from a grid
over [0, 1] by the error of the layer's output.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from .moments import Moments

_STEPS = 20


def scales(weights: Sequence[Tensor], moments: Moments, rounded: Callable[[Tensor], Tensor]) -> Tensor:
    """Scales (columns,) for layers with ``weights`` (out, columns) that read the same inputs.

    ``rounded`` gives a weight as it comes back from the file. The error of the outputs over all observed inputs is
    taken from their second moment S: tr(E S E^T) for an error E of the weight.
    """
    together = torch.cat([weight.float() for weight in weights])
    best, least = torch.ones(together.shape[1]), float("inf")
    for step in range(_STEPS):
        scale = moments.mean_abs.clamp_min(1e-4) ** (step / _STEPS)
        scale /= (scale.max() * scale.min()).sqrt()
        error = rounded(together * scale).float() / scale - together
        loss = float(((error @ moments.second_moment) * error).sum())
        if loss < least:
            best, least = scale, loss
    return best
