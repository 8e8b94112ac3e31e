"""``computekit dequantize``: floats from compressed weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .. import options
from ..errors import FileProblem

if TYPE_CHECKING:
    import torch

    from ..models import TensorInfo
    from ..steps import StepRun


@click.command()
@options.model
@options.step
def dequantize(run: StepRun, model: Path) -> None:
    """Turn the compressed weights of a model file back into floats: the file of the same kind that any loader reads.

    Each weight is its integers times their scales, in the type that it had before it was quantized; what rounding took
    does not come back. All other tensors are copied as they are.

    \b
    Example:
      computekit dequantize model-int8.pt -o model-float.pt
    """
    from .. import files
    from ..models import compressed, open_model, rewrite

    source = open_model(run.input(model))
    weights = compressed.find(source.tensors)
    if not weights:
        raise FileProblem(model, "holds no compressed weights", "there is nothing to dequantize")
    first = {compressed.parts(name, bits)[0]: name for name, bits in weights.items()}
    rest = {part for name, bits in weights.items() for part in compressed.parts(name, bits)[1:]}

    def transform(info: TensorInfo, load: Callable[[], torch.Tensor]) -> list[tuple[str, torch.Tensor]] | None:
        if info.name in rest:
            return []
        if info.name not in first:
            return None
        name = first[info.name]
        return [(name, compressed.QuantizedWeight.restore(name, source.load, weights[name]).dequantize())]

    metadata = {key: value for key, value in source.metadata.items() if key != "compression"}
    with run.writing(model.with_stem(f"{model.stem}-float")) as target:
        rewrite(source, target, transform, metadata)
        size = files.size_bytes(target)
    run.put("file_bytes", size, "B")
    run.put("dequantized_tensors", len(weights), "1")
