"""From a plan to a file: every tensor streams through, one at a time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import computekit
from computekit import FileProblem

if TYPE_CHECKING:
    import torch

    from computekit.models import ModelFile, TensorInfo

    from .plan import Decision, Treatment


def write(
    run: computekit.StepRun,
    source: ModelFile,
    target: Path,
    decisions: list[Decision],
    asked: Treatment,
    runtime: dict[str, Any] | None = None,
) -> None:
    """Stream every tensor of ``source`` to ``target``, quantizing those that the plan chose.

    The file remembers what was ``asked`` for, which layers compute with rounded inputs, and the ``runtime`` that runs
    it.
    """
    from computekit.models import compressed, rewrite

    from . import huggingface

    compression = describe(decisions, asked)
    if runtime is not None:
        compression["runtime"] = runtime
    metadata = {**source.metadata, "compression": compression}
    if huggingface.is_folder(source) and any(d.quantized and d.treatment.scheme.bits < 16 for d in decisions):
        config = metadata["quantization_config"] = huggingface.quantization_config(decisions)
        if not config["dequantize"]:
            run.note(
                "the weights have several layouts, and plain transformers reads folders with one: "
                "computekit.load_module reads this one, computekit dequantize makes a plain one of it"
            )
    by_name = {name: decision for decision in decisions for name in decision.names}
    with run.progress(len(decisions), "quantizing", "tensor") as bar:

        def transform(info: TensorInfo, load: Callable[[], torch.Tensor]) -> list[tuple[str, torch.Tensor]] | None:
            bar.update()
            decision = by_name[info.name]
            if not decision.quantized:
                return None
            rounded = decision.treatment.round_stored(source, info)
            if isinstance(rounded, compressed.HalfWeight):
                return rounded.store(info.name)
            half_scales = decision.treatment.narrows(info.dtype)
            return rounded.store(info.name, half_scales=half_scales) + decision.beside()

        try:
            rewrite(source, target, transform, metadata)
        except compressed.NonFinite as error:
            raise FileProblem(
                source.path, str(error), f"repair it, or leave it out with --exclude '{error.name}'"
            ) from error


def describe(decisions: list[Decision], asked: Treatment) -> dict[str, Any]:
    """The metadata ``compression`` of a file: the scheme, and how the layers of the quantized weights compute.

    ``activations`` is one word where all of them agree, else the word of each weight that does not compute in floats.
    ``scales_of`` is likewise the type of the weights whose scales are narrower.
    """
    quantized = [decision for decision in decisions if decision.quantized]
    halves = {d.treatment.scheme.name for d in quantized if d.treatment.scheme.bits == 16}
    words = {name: d.treatment.activations for d in quantized if d.treatment.scheme.bits < 16 for name in d.names}
    activations: str | dict[str, str] = asked.activations
    if any(word != asked.activations for word in words.values()):
        activations = {name: word for name, word in words.items() if word != "float"}
    about: dict[str, Any] = {"scheme": asked.scheme.name, "activations": activations}
    narrowed = {name: dtype for d in quantized for name, dtype in _narrowed(d).items()}
    if narrowed:
        same = len(narrowed) == len(words) and len(set(narrowed.values())) == 1
        about["scales_of"] = next(iter(narrowed.values())) if same else narrowed
    if halves:
        about["dtype"] = {"bf16": "bfloat16", "fp16": "float16"}[halves.pop()]
    return about


def _narrowed(decision: Decision) -> dict[str, str]:
    """The names of a weight whose scales are narrower than it was, with its type."""
    dtype = decision.info.dtype
    return dict.fromkeys(decision.names if decision.treatment.narrows(dtype) else (), str(dtype).removeprefix("torch."))
