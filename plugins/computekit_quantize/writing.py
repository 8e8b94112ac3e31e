"""From a plan to a file: every tensor streams through, one at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import computekit
from computekit import FileProblem

if TYPE_CHECKING:
    import torch

    from computekit.models import ModelFile, TensorInfo

    from .plan import Decision, Request


def write(
    run: computekit.StepRun, source: ModelFile, target: Path, decisions: list[Decision], request: Request
) -> None:
    """Stream every tensor of ``source`` to ``target``, quantizing those that the plan chose."""
    from computekit.models import compressed, rewrite

    from . import huggingface

    scheme, group = request.scheme, request.group
    metadata = {**source.metadata, "compression": {"scheme": scheme.name, "activations": request.activations}}
    if huggingface.is_folder(source):
        metadata["quantization_config"] = huggingface.quantization_config(decisions, request)
    by_name = {name: decision for decision in decisions for name in decision.names}
    with _one_thread(), run.progress(len(decisions), "quantizing", "tensor") as bar:

        def transform(info: TensorInfo, load: Callable[[], torch.Tensor]) -> list[tuple[str, torch.Tensor]] | None:
            bar.update()
            if not by_name[info.name].quantized:
                return None
            return scheme.quantize(load(), scheme.bits, group, info.name).store(info.name)

        try:
            rewrite(source, target, transform, metadata)
        except compressed.NonFinite as error:
            raise FileProblem(
                source.path, str(error), f"repair it, or leave it out with --exclude '{error.name}'"
            ) from error


@contextmanager
def _one_thread() -> Iterator[None]:
    """Keep torch to one thread: the pieces that `compressed.quantize` works on stay in the cache and take microseconds,
    less than it takes to wake the other threads, which would burn every core while they wait."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
