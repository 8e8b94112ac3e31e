"""Models of text and images whose text runs alone: the count of one image that goes with it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from computekit.flops import FlopCount

    from .source import Subject


def joined(cost: FlopCount, module: Any, subject: Subject) -> FlopCount:
    """The count of a text with that of one image, whose tokens are among the text's."""
    from computekit import flops

    first = ""
    for image in subject.images:
        try:
            seen = flops.count(module, (), image, method="get_image_features")
        except flops.CountFailed as error:
            first = first or str(error)
            continue
        subject.image_note = (
            f"one image of {size(image)} is counted with the text{_image_tokens(seen, module, subject)}"
        )
        return cost.joined(seen)
    if subject.images:
        subject.image_note = f"the text alone is counted; its image: {first}"
    return cost


def size(image: Mapping[str, Any]) -> str:
    """What an image is called whose pixels are whole or in rows of patches."""
    *_, rows, columns = image["pixel_values"].shape
    packed = "image_grid_thw" in image or "spatial_shapes" in image
    return f"{rows:,} patches" if packed else f"{rows} x {columns} pixels"


def _image_tokens(seen: FlopCount, module: Any, subject: Subject) -> str:
    """How many of the text's tokens the tower made of the image, where what it gave has their width."""
    shapes = seen.outputs.get("pooler_output") or seen.outputs.get("", ())
    width = module.get_input_embeddings().embedding_dim
    tokens = sum(math.prod(shape[:-1]) for shape in shapes if shape[-1:] == (width,))
    return f": {tokens:,} image tokens among {subject.tokens:,}" if tokens else ""
