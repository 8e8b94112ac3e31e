"""The backend ``openvino``: OpenVINO on the CPU, quantized by NNCF."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .backend import Backend, Export

if TYPE_CHECKING:
    import torch
    from torch import nn

    from computekit import ModelFile

    from .signature import Call

_AGAIN = 2
"""The call with inputs of the same shapes at which the program is compiled for them, and runs about 10% faster."""
_SMOOTH = 0.8
"""How much of activations' outliers moves into the weights (NNCF: 0.95): what keeps MiniLM nearest, of 0.5 to 0.95."""

_FIXED = 4
"""Shapes for which there is a program of its own at most; each takes memory and a second or two to compile."""


def _export(job: Export, stem: Path) -> dict[str, Any]:
    """Write ``stem.xml`` and ``stem.bin``.

    Calibrated, weights and activations are in 8 bits, with SmoothQuant; otherwise the weights alone are in fewer bits,
    a scale per channel (8) or per group of 64 (4). NNCF's bias correction is left out, which estimates a shift of each
    layer from samples: on a ResNet it takes the cosine of the outputs from 0.9999 to 0.999, on MiniLM it gains nothing.
    """
    import openvino
    import torch

    from . import exporting

    def convert(program: torch.export.ExportedProgram, _names: list[str]) -> tuple[openvino.Model, Call]:
        model = openvino.convert_model(program)
        request = openvino.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"}).create_infer_request()
        return model, lambda inputs: _infer(request, inputs)

    made = exporting.exported(job, convert)
    with exporting.quiet():
        import nncf

        model = made.model
        floats = exporting.operations_of(made.program, job.floats)
        left_out = [op.get_friendly_name() for op in model.get_ops() if _multiplies(op, floats)]
        scope = nncf.IgnoredScope(names=left_out) if left_out else None
        if job.activations == "static":
            assert job.calibration is not None
            samples = [
                tuple(value.numpy() for value in job.inputs(sample).values())
                for sample in torch.split(job.calibration, 1)
            ]
            tokens = not job.calibration.is_floating_point()
            recipe = nncf.AdvancedQuantizationParameters(
                disable_bias_correction=True,
                smooth_quant_alphas=nncf.AdvancedSmoothQuantParameters(matmul=_SMOOTH),
            )
            model = nncf.quantize(
                model, nncf.Dataset(samples), subset_size=len(samples), advanced_parameters=recipe,
                preset=nncf.QuantizationPreset.MIXED if tokens else nncf.QuantizationPreset.PERFORMANCE,
                model_type=nncf.ModelType.TRANSFORMER if tokens else None, ignored_scope=scope,
            )  # fmt: skip
        elif job.bits < 16:
            mode = nncf.CompressWeightsMode.INT8_SYM if job.bits == 8 else nncf.CompressWeightsMode.INT4_SYM
            groups = {} if job.bits == 8 else {"group_size": 64}
            model = nncf.compress_weights(model, mode=mode, ignored_scope=scope, **groups)
        openvino.save_model(model, stem.with_name(f"{stem.name}.xml"), compress_to_fp16=job.half is not None)
    return {**made.about, "precision": {"bf16": "bf16", "fp16": "f16"}.get(job.half or "", "f32")}


def _multiplies(operation: Any, names: set[str]) -> bool:
    """Whether an operation of OpenVINO is the product of one of the graph's operations, after which it is called."""
    kinds = ("MatMul", "Convolution", "GroupConvolution", "ConvolutionBackpropData", "GroupConvolutionBackpropData")
    return operation.get_type_name() in kinds and operation.get_friendly_name().partition("/")[0] in names


def _infer(request: Any, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """What an inference request makes of tensors, as tensors of their own."""
    import torch

    results = request.infer([value.contiguous().numpy() for value in inputs], share_inputs=True)
    return [torch.from_numpy(array.copy()) for array in results.values()]


def _load(source: ModelFile, build: Callable[[], nn.Module]) -> nn.Module:
    import torch

    BACKEND.check_present()
    import openvino

    from computekit import FileProblem

    from . import programs, signature

    about, paths = programs.find(source)
    binary, xml = sorted(paths, key=lambda path: path.suffix)
    settings = {
        "INFERENCE_PRECISION_HINT": about["precision"],
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        "PERFORMANCE_HINT": "LATENCY",
    }
    core = openvino.Core()
    seen: Counter[tuple[Any, ...]] = Counter()
    fixed: dict[tuple[Any, ...], Any] = {}

    def requests(model: Any) -> Any:
        return core.compile_model(model, "CPU", settings).create_infer_request()

    try:
        program = core.read_model(xml, binary)
        free = requests(program)
    except RuntimeError as error:
        raise FileProblem(xml, "cannot be run by this OpenVINO", str(error).splitlines()[0][:200]) from error

    def run(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        shapes = tuple(tuple(value.shape) for value in inputs)
        seen[shapes] += 1
        if seen[shapes] == _AGAIN and len(fixed) < _FIXED:
            model = program.clone()
            model.reshape({port: list(shape) for port, shape in zip(model.inputs, shapes, strict=True)})
            fixed[shapes] = requests(model)
        return _infer(fixed.get(shapes, free), inputs)

    return signature.Program(run, about).eval()


BACKEND = Backend(
    "openvino", "OpenVINO, exported beside the file", _load, _export, extra="openvino",
    packages=("openvino", "nncf"), activations=("static", "float"), endings=(".xml", ".bin"), partial=True,
)  # fmt: skip
