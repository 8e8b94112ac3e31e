"""Signals and sequences: arrays (N, C, T) and (N, T, F), which could as well be images (N, H, W) of one channel."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import ComputekitError

if TYPE_CHECKING:
    from .datasets import Data, Split


def for_model(data: Data, model: Path) -> Data:
    """``data`` as the weights in ``model`` take it, where its samples are (1, H, W): as (H, W) if they are no images.

    The first weight decides: of a convolution over one axis with H channels, or a matrix for rows of W values.
    """
    from .models import open_model, roles
    from .models.float_view import FloatView

    if len(data.sample_shape) != 3 or data.sample_shape[0] != 1:
        return data
    try:
        tensors = FloatView(open_model(model, trust_pickle=True)).tensors  # opening runs nothing
    except (ComputekitError, OSError):
        return data  # whoever opens it for its weights says what is wrong with it
    first = next((info for info in tensors.values() if roles.of(info, tensors) in ("linear", "conv")), None)
    _, rows, columns = data.sample_shape
    taken = {2: columns, 3: rows}
    return without_channel(data) if first is not None and first.shape[1] == taken.get(len(first.shape)) else data


def without_channel(data: Data) -> Data:
    """``data`` with samples (H, W) instead of (1, H, W)."""

    def plain(split: Split) -> Split:
        return replace(split, inputs=split.inputs.squeeze(1))

    return replace(data, train=plain(data.train), validation=plain(data.validation), test=plain(data.test))
