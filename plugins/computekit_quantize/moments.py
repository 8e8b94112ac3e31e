"""What calibrated schemes know of the inputs of a layer: moments and ranges, per column of its weight."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import nn

if TYPE_CHECKING:
    from torch import Tensor

_PIECE = 1 << 21  # values that are multiplied at a time


def can_observe(layer: nn.Module) -> bool:
    """Whether the output of ``layer`` is a product of its weight (out, columns) with what `Moments` sees."""
    return isinstance(layer, nn.Linear) or (isinstance(layer, (nn.Conv1d, nn.Conv2d)) and layer.groups == 1)


class Moments:
    """An observer: of the vectors x (columns,) that the weight (out, columns) of ``layer`` multiplied.

    ``count`` vectors were seen; ``second_moment`` (columns, columns) is the sum of x x^T, ``sum_abs`` and ``max_abs``
    (columns,) are of |x|, all float32 on the CPU. For a convolution, x is what the kernel lies on, in the order of the
    values of its weight. The second moment of a layer with 4096 inputs takes 64 MiB.
    """

    def __init__(self, layer: nn.Module) -> None:
        assert isinstance(layer, (nn.Linear, nn.Conv1d, nn.Conv2d))
        columns = layer.weight[0].numel()
        self._layer = layer
        self.count = 0
        self.second_moment = torch.zeros(columns, columns)
        self.sum_abs = torch.zeros(columns)
        self.max_abs = torch.zeros(columns)

    @property
    def mean_abs(self) -> Tensor:
        """Mean of |x| for each column: (columns,)."""
        return self.sum_abs / max(1, self.count)

    def divide(self, scale: Tensor) -> None:
        """Make these the moments of inputs that are divided by ``scale`` (columns,)."""
        self.second_moment /= scale.outer(scale)
        self.sum_abs /= scale
        self.max_abs /= scale

    def __call__(self, input: Tensor) -> None:
        for rows in self._rows(input):
            self.count += rows.shape[0]
            self.second_moment.addmm_(rows.T, rows)
            magnitudes = rows.abs()
            self.sum_abs += magnitudes.sum(0)
            self.max_abs = torch.maximum(self.max_abs, magnitudes.amax(0))

    def _rows(self, input: Tensor) -> Iterator[Tensor]:
        """The input as matrices (vectors, columns) of bounded size, float32 on the CPU."""
        layer = self._layer
        if isinstance(layer, nn.Linear):
            rows = input.reshape(-1, input.shape[-1])
            for piece in torch.split(rows, max(1, _PIECE // rows.shape[1])):
                yield piece.float().cpu()
            return
        assert isinstance(layer, (nn.Conv1d, nn.Conv2d))
        mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
        images = input.reshape(-1, *input.shape[-len(layer.kernel_size) - 1 :])  # a single one may lack the batch
        for image in torch.split(images, 1):
            padded = F.pad(image.float().cpu(), layer._reversed_padding_repeated_twice, mode)
            if isinstance(layer, nn.Conv1d):
                shape, stride, dilation = (1, *layer.kernel_size), (1, *layer.stride), (1, *layer.dilation)
                patches = F.unfold(padded.unsqueeze(2), shape, dilation, stride=stride)
            else:
                patches = F.unfold(padded, layer.kernel_size, layer.dilation, stride=layer.stride)
            yield patches[0].T
