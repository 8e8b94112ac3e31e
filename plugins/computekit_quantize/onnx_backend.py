"""The backend ``onnx``: ONNX Runtime on the CPU, with its own 8-bit quantization."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .backend import Backend, Export

if TYPE_CHECKING:
    import torch
    from torch import nn

    from computekit import ModelFile

    from .signature import Call

_BATCH = 8


def _export(job: Export, stem: Path) -> dict[str, Any]:
    """Write ``stem.onnx``: weights in 8 bits with a scale per channel; activations dynamic or, calibrated, static."""
    import tempfile

    import torch
    from onnxruntime import quantization
    from onnxruntime.quantization import shape_inference

    from . import exporting

    target = stem.with_name(f"{stem.name}.onnx")
    with tempfile.TemporaryDirectory() as folder, exporting.quiet():
        plain, prepared = Path(folder, "plain.onnx"), Path(folder, "prepared.onnx")

        def convert(program: torch.export.ExportedProgram, names: list[str]) -> tuple[None, Call]:
            made = torch.onnx.export(program, (), dynamo=True, verbose=False, input_names=names)
            assert made is not None
            made.save(plain)
            return None, _running(plain, names)

        about = exporting.exported(job, convert).about
        left_out = _nodes_of(plain, job.floats)
        shape_inference.quant_pre_process(str(plain), str(prepared), skip_symbolic_shape=True)
        if job.activations == "dynamic":
            quantization.quantize_dynamic(
                prepared, target, per_channel=True, weight_type=quantization.QuantType.QInt8, nodes_to_exclude=left_out
            )
        else:
            quantization.quantize_static(
                str(prepared), str(target), _Reader(job), per_channel=True,
                quant_format=quantization.QuantFormat.QDQ, op_types_to_quantize=["Conv", "MatMul", "Gemm"],
                nodes_to_exclude=left_out,
            )  # fmt: skip
    return about


def _nodes_of(path: Path, layers: Sequence[str]) -> list[str]:
    """Names of the nodes of a file that torch exported which come from these layers, or have their weights."""
    import onnx

    scopes = {f"module.{layer}" if layer else "module" for layer in layers}
    found = []
    for node in onnx.load(path, load_external_data=False).graph.node:
        told = next((each.value for each in node.metadata_props if each.key == "pkg.torch.onnx.name_scopes"), "[]")
        weights = {name.rpartition(".")[0] for name in node.input}  # convolutions bear the name of their norm
        if not scopes.isdisjoint({*ast.literal_eval(told), *weights}):
            found += [node.name, f"{node.name}_MatMul"]  # the second is what the quantizer makes of a Gemm
    return found


class _Reader:
    """Hands the calibration samples to ONNX Runtime, a few at a time (its `CalibrationDataReader`)."""

    def __init__(self, job: Export) -> None:
        self._batches = self._feeds(job)

    def _feeds(self, job: Export) -> Iterator[dict[str, Any]]:
        import torch

        assert job.calibration is not None
        for piece in torch.split(job.calibration, _BATCH):
            yield {name: value.numpy() for name, value in job.inputs(piece).items()}

    def get_next(self) -> dict[str, Any] | None:
        return next(self._batches, None)


def _load(source: ModelFile, build: Callable[[], nn.Module]) -> nn.Module:
    BACKEND.check_present()
    from computekit import FileProblem

    from . import programs, signature

    about, [path] = programs.find(source)
    try:
        run = _running(path, [name for name, _ in about["inputs"]])
    except Exception as error:  # the runtime's own exceptions share no class
        raise FileProblem(path, "cannot be run by this ONNX Runtime", str(error).splitlines()[0][:200]) from error
    return signature.Program(run, about).eval()


def _running(path: Path, names: Sequence[str]) -> Call:
    """What runs the file: tensors in the order of ``names`` in, tensors out."""
    import onnxruntime
    import torch

    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = torch.get_num_threads()
    settings.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), settings, providers=["CPUExecutionProvider"])
    used = {each.name for each in session.get_inputs()}  # what the code does not look at may not be among them

    def run(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        feeds = {name: value.numpy() for name, value in zip(names, inputs, strict=True) if name in used}
        return [torch.from_numpy(output) for output in session.run(None, feeds)]

    return run


BACKEND = Backend(
    "onnx", "ONNX Runtime, exported beside the file", _load, _export, extra="onnx",
    packages=("onnx", "onnxscript", "onnxruntime"), activations=("static", "dynamic"), bits=(8,),
    endings=(".onnx",), partial=True,
)  # fmt: skip
