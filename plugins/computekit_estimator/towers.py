"""Models of text with images or sound whose text runs alone: the count of one image and one sound that go with it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from computekit.flops import FlopCount

    from .source import Subject


def joined(cost: FlopCount, module: Any, subject: Subject) -> FlopCount:
    """The count of a text with that of what goes with it, whose tokens are among the text's."""
    for method, forms in subject.towers.items():
        cost = _with(cost, module, subject, method, forms)
    return cost


def _with(cost: FlopCount, module: Any, subject: Subject, method: str, forms: Sequence[Mapping[str, Any]]) -> FlopCount:
    from computekit import flops

    what = "image" if "image" in method else "sound"
    first = ""
    for form in forms:
        try:
            seen = flops.count(module, (), form, method=method)
        except flops.CountFailed as error:
            first = first or str(error)
            continue
        tokens = _tokens(seen, module)
        among = f": {tokens:,} {what} tokens among {subject.tokens:,}" if tokens else ""
        subject.tower_notes[method] = f"one {what} of {size(form)} is counted with the text{among}"
        return cost.joined(seen)
    subject.tower_notes[method] = f"the text is counted without {what}: {first}"
    return cost


def size(form: Mapping[str, Any]) -> str:
    """What an image is called whose pixels are whole or in rows of patches, and a sound in numbers or frames."""
    name = next(name for name in ("pixel_values", "input_features", "input_values") if name in form)
    *_, rows, columns = form[name].shape
    if name != "pixel_values":
        return f"{columns:,} samples" if name == "input_values" else f"a spectrogram of {rows:,} x {columns:,}"
    packed = "image_grid_thw" in form or "spatial_shapes" in form
    return f"{rows:,} patches" if packed else f"{rows} x {columns} pixels"


def _tokens(seen: FlopCount, module: Any) -> int:
    """How many of the text's tokens the tower made, where what it gave has their width; else 0."""
    shapes = seen.outputs.get("pooler_output") or seen.outputs.get("", ())
    try:
        width = module.get_input_embeddings().embedding_dim
    except (NotImplementedError, AttributeError):  # a text that is read beside the image has no place for its tokens
        return 0
    return sum(math.prod(shape[:-1]) for shape in shapes if shape[-1:] == (width,))
