"""SmoothQuant: outliers in the activations are moved into the weights, so that both are easy to round to 8 bits.

Xiao, Lin, Seznec, Wu, Demouth, Han 2022, "SmoothQuant: Accurate and Efficient Post-Training Quantization for Large
Language Models", arXiv:2211.10438, section 4, equation 4: s = max|x|^alpha / max|w|^(1 - alpha), alpha = 0.5.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from .moments import Moments

_ALPHA = 0.5


def scales(weights: Sequence[Tensor], moments: Moments, rounded: Callable[[Tensor], Tensor]) -> Tensor:
    """Scales (columns,) for layers with ``weights`` (out, columns) that read the same inputs."""
    largest = torch.stack([weight.float().abs().amax(0) for weight in weights]).amax(0)
    scale = moments.max_abs.clamp_min(1e-5) ** _ALPHA / largest.clamp_min(1e-5) ** (1 - _ALPHA)
    return torch.where(moments.max_abs > 0, scale, 1.0).clamp(1e-4, 1e4)
