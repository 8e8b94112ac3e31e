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
@options.trust_pickle
@options.step
def dequantize(run: StepRun, model: Path, trust_pickle: bool) -> None:
    """Turn the compressed weights of a model file back into floats: the file of the same kind that any loader reads.

    Each weight is its integers times their scales, in the type that it had before it was quantized; what rounding took
    does not come back. All other tensors are copied as they are.

    \b
    Example:
      computekit dequantize model-int8.pt -o model-float.pt
    """
    run.input(model)  # hashed from now on, while torch is imported
    from .. import files
    from ..models import open_model, rewrite
    from ..models.float_view import FloatView
    from ..models.formats import check_rewritable

    source = open_model(model, trust_pickle=trust_pickle)
    floats = FloatView(source)
    if not floats.weights:
        raise FileProblem(model, "holds no compressed weights", "there is nothing to dequantize")

    check_rewritable(source, run.output(source.beside("float")))

    def transform(info: TensorInfo, load: Callable[[], torch.Tensor]) -> list[tuple[str, torch.Tensor]] | None:
        if info.name in floats.first:
            name = floats.first[info.name]
            return [(name, floats.load(name))]
        return None if info.name in floats.tensors else []

    metadata = {key: value for key, value in source.metadata.items() if key != "compression"}
    if source.format == "folder":
        metadata["quantization_config"] = None
    with run.writing(source.beside("float")) as target:
        rewrite(source, target, transform, metadata)
        size = files.size_bytes(target)
    run.put("file_bytes", size, "B")
    run.put("dequantized_tensors", len(floats.weights), "1")
