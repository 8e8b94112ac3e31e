"""Quantization by other libraries, for `quantize.py`: each candidate is made as its library documents it.

A maker gets a `Subject`, and whether to compile, and returns candidates: a name, the library, a call from inputs to
an output tensor (samples, ...), and the bytes of what the library saves. What is not installed raises ImportError;
what fails is named.
"""

from __future__ import annotations

import copy
import io
import logging
import math
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

Call = Callable[..., Tensor]


@dataclass
class Subject:
    """A model in float32, the inputs of one call, and calibration samples: tuples of inputs of the same shapes.

    ``tokens``: it is an encoder of token sequences, else a network with convolutions.
    """

    module: nn.Module
    inputs: tuple[Tensor, ...]
    calibration: list[tuple[Tensor, ...]]
    tokens: bool

    @property
    def names(self) -> list[str]:
        return ["input_ids", "attention_mask"] if self.tokens else ["x"]


@dataclass
class Candidate:
    """``call(*inputs)`` gives the output that is compared: pooled hidden states, or logits."""

    name: str
    library: str
    call: Call
    bytes: int


def batches(subject: Subject) -> list[tuple[Tensor, ...]]:
    """The calibration samples in batches of the size that programs of fixed shape are made for, repeated to fill it."""
    size = len(subject.inputs[0])
    joined = [torch.cat(parts) for parts in zip(*subject.calibration, strict=True)]
    count = -(-len(joined[0]) // size) * size
    filled = [part.repeat(-(-count // len(part)), *[1] * (part.ndim - 1))[:count].split(size) for part in joined]
    return list(zip(*filled, strict=True))


class Flat(nn.Module):
    """The model with positional inputs and one output tensor: what exporters are given."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, first: Tensor, mask: Tensor | None = None) -> Tensor:
        if mask is None:
            return torch.as_tensor(self.module(first))
        hidden: Tensor = self.module(input_ids=first, attention_mask=mask).last_hidden_state
        return hidden


def pooled(output: Tensor, mask: Tensor | None = None) -> Tensor:
    """Hidden states (samples, tokens, width) averaged over the tokens that count; anything else as it is."""
    output = output.float()
    if mask is None or output.ndim < 3:
        return output
    weights = mask.unsqueeze(2).float()
    return (output * weights).sum(1) / weights.sum(1)


def caller(run: Callable[..., Any]) -> Call:
    """A candidate's call from a function of the flat model's inputs."""

    def call(*inputs: Tensor) -> Tensor:
        return pooled(torch.as_tensor(run(*inputs)), inputs[1] if len(inputs) > 1 else None)

    return call


def saved_bytes(module: nn.Module) -> int:
    """Bytes of the module's state_dict as torch saves it."""
    stream = io.BytesIO()
    torch.save(module.state_dict(), stream)
    return stream.tell()


def compiled(module: nn.Module, inputs: tuple[Tensor, ...], freezing: bool = True) -> Any:
    """``module`` compiled for ``inputs`` now, with its weights as constants if ``freezing``, which is global.

    Many models of one class are compiled in one process, so Dynamo's limit of 8 is raised.
    """
    import torch._dynamo.config
    import torch._inductor.config

    torch._dynamo.config.recompile_limit = torch._dynamo.config.accumulated_recompile_limit = 1000
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    torch._inductor.config.freezing = freezing
    run = torch.compile(module, dynamic=False)
    with torch.inference_mode():
        run(*inputs)
    return run


def torch_itself(subject: Subject, compiling: bool) -> Iterator[Candidate]:
    flat = Flat(subject.module)
    size = saved_bytes(flat)
    half = copy.deepcopy(flat).bfloat16()

    def in_half(module: nn.Module) -> Callable[..., Tensor]:
        return lambda first, *rest: module(first.bfloat16() if first.is_floating_point() else first, *rest)

    yield Candidate("bf16 eager", "torch", caller(in_half(half)), size // 2)
    if not compiling:
        return
    yield Candidate("fp32 compiled", "torch", caller(compiled(copy.deepcopy(flat), subject.inputs)), size)
    inputs = tuple(value.bfloat16() if value.is_floating_point() else value for value in subject.inputs)
    yield Candidate("bf16 compiled", "torch", caller(in_half(compiled(copy.deepcopy(half), inputs))), size // 2)


def torch_ao(subject: Subject, compiling: bool) -> Iterator[Candidate]:
    from torch.ao import quantization as ao

    recipes = {"int8 dynamic": ao.default_dynamic_qconfig, "int8 dynamic, per channel": ao.per_channel_dynamic_qconfig}
    for name, recipe in recipes.items():
        module = ao.quantize_dynamic(copy.deepcopy(Flat(subject.module)), {nn.Linear: recipe})
        yield Candidate(name, "torch.ao", caller(module), saved_bytes(module))


def torch_fx(subject: Subject, compiling: bool) -> Iterator[Candidate]:
    from torch.ao.quantization import get_default_qconfig_mapping
    from torch.ao.quantization.quantize_fx import convert_fx, prepare_fx

    torch.backends.quantized.engine = "x86"
    example = subject.calibration[0]
    prepared = prepare_fx(copy.deepcopy(subject.module), get_default_qconfig_mapping("x86"), example)
    for inputs in subject.calibration:
        prepared(*inputs)
    module = convert_fx(prepared)
    yield Candidate("int8 static, FX x86", "torch.ao", caller(module), saved_bytes(module))


def torchao(subject: Subject, compiling: bool) -> Iterator[Candidate]:
    from torchao.quantization import Int8DynamicActivationInt8WeightConfig, Int8WeightOnlyConfig, quantize_

    for name, config in (
        ("int8 weights", Int8WeightOnlyConfig()),
        ("int8 dynamic", Int8DynamicActivationInt8WeightConfig()),
    ):
        module = copy.deepcopy(Flat(subject.module))
        quantize_(module, config)
        yield Candidate(name, "torchao", caller(module), saved_bytes(module))
        if name == "int8 dynamic" and compiling:
            # not frozen: inductor would turn it into a kernel for signed inputs that takes seconds per layer here
            run = compiled(module, subject.inputs, freezing=False)
            yield Candidate(f"{name}, compiled", "torchao", caller(run), saved_bytes(module))


def pt2e(subject: Subject, compiling: bool) -> Iterator[Candidate]:
    import torchao.quantization.pt2e.quantizer.x86_inductor_quantizer as x86
    from torchao.quantization.pt2e import move_exported_model_to_eval
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    for dynamic in (False, True) if subject.tokens else (False,):
        exported = torch.export.export(Flat(subject.module).eval(), subject.inputs).module()
        exported.graph.eliminate_dead_code()  # a pooler that nobody reads: the quantizer looks for what does
        exported.recompile()
        quantizer = x86.X86InductorQuantizer()
        quantizer.set_global(x86.get_default_x86_inductor_quantization_config(is_dynamic=dynamic))
        prepared = prepare_pt2e(exported, quantizer)
        for inputs in batches(subject) if not dynamic else ():
            prepared(*inputs)
        module = convert_pt2e(prepared)
        move_exported_model_to_eval(module)
        name = f"int8 {'dynamic' if dynamic else 'static'}, PT2E compiled"
        yield Candidate(name, "torchao", caller(compiled(module, subject.inputs)), saved_bytes(module))


def onnxruntime(subject: Subject, compiling: bool) -> Iterator[Candidate]:
    import onnxruntime as ort
    from onnxruntime import quantization as q

    settings = ort.SessionOptions()
    settings.intra_op_num_threads = torch.get_num_threads()
    settings.log_severity_level = 3
    folder = Path(tempfile.mkdtemp())
    plain, prepared = folder / "fp32.onnx", folder / "prepared.onnx"
    names = subject.names
    exported = torch.onnx.export(
        Flat(subject.module).eval(), subject.inputs, dynamo=True, verbose=False, input_names=names
    )
    assert exported is not None
    exported.save(plain)
    q.shape_inference.quant_pre_process(str(plain), str(prepared), skip_symbolic_shape=True)

    def candidate(name: str, path: Path) -> Candidate:
        session = ort.InferenceSession(str(path), settings, providers=["CPUExecutionProvider"])
        keys = [given.name for given in session.get_inputs()]

        def run(*inputs: Tensor) -> Tensor:
            feeds = {key: value.numpy() for key, value in zip(keys, inputs, strict=True)}
            return torch.from_numpy(session.run(None, feeds)[0])

        return Candidate(name, "onnxruntime", caller(run), path.stat().st_size)

    yield candidate("fp32", plain)
    q.quantize_dynamic(prepared, folder / "dynamic.onnx", per_channel=True, weight_type=q.QuantType.QInt8)
    yield candidate("int8 dynamic", folder / "dynamic.onnx")

    class Reader(q.CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.feeds = iter(
                [dict(zip(names, (x.numpy() for x in inputs), strict=True)) for inputs in batches(subject)]
            )

        def get_next(self) -> Any:
            return next(self.feeds, None)

    q.quantize_static(
        str(prepared), str(folder / "static.onnx"), Reader(), per_channel=True, quant_format=q.QuantFormat.QDQ,
        op_types_to_quantize=["Conv", "MatMul", "Gemm"],
    )  # fmt: skip
    yield candidate("int8 static", folder / "static.onnx")


def openvino(subject: Subject, compiling: bool) -> Iterator[Candidate]:
    import nncf
    import openvino as ov

    nncf.set_log_level(logging.ERROR)
    core = ov.Core()
    settings = {"INFERENCE_NUM_THREADS": torch.get_num_threads(), "PERFORMANCE_HINT": "LATENCY"}

    def convert() -> Any:
        return ov.convert_model(torch.export.export(Flat(subject.module).eval(), subject.inputs))

    def candidate(name: str, model: Any, hint: str = "f32") -> Candidate:
        target = Path(tempfile.mkdtemp()) / "model.xml"
        ov.save_model(model, target, compress_to_fp16=False)
        request = core.compile_model(
            model, "CPU", {**settings, "INFERENCE_PRECISION_HINT": hint}
        ).create_infer_request()

        def run(*inputs: Tensor) -> Tensor:
            return torch.from_numpy(next(iter(request.infer([x.numpy() for x in inputs]).values())))

        size = target.stat().st_size + target.with_suffix(".bin").stat().st_size
        return Candidate(name, "openvino", caller(run), size)

    yield candidate("fp32", convert())
    yield candidate("int8 weights", nncf.compress_weights(convert()))
    samples = [tuple(part.numpy() for part in inputs) for inputs in batches(subject)]
    static = nncf.quantize(
        convert(), nncf.Dataset(samples), subset_size=len(samples),
        model_type=nncf.ModelType.TRANSFORMER if subject.tokens else None,
    )  # fmt: skip
    yield candidate("int8 static (PTQ)", static)
    yield candidate("int8 static (PTQ), bf16 around", static, "bf16")


def quanto(subject: Subject, compiling: bool) -> Iterator[Candidate]:
    from optimum import quanto as library

    module = copy.deepcopy(Flat(subject.module))
    library.quantize(module, weights=library.qint8)
    library.freeze(module)
    yield Candidate("int8 weights", "quanto", caller(module), saved_bytes(module))


MAKERS: dict[str, Callable[[Subject, bool], Iterator[Candidate]]] = {
    "torch": torch_itself, "torch.ao": torch_ao, "torch.ao FX": torch_fx, "torchao": torchao, "torchao PT2E": pt2e,
    "onnxruntime": onnxruntime, "openvino": openvino, "quanto": quanto,
}  # fmt: skip


@dataclass
class Field:
    """Who takes part, and who does not and why. After ``deadline`` (of time.monotonic) nothing more is begun."""

    candidates: list[Candidate] = field(default_factory=list)
    absent: list[dict[str, str]] = field(default_factory=list)
    deadline: float = math.inf

    def seconds_left(self) -> float | None:
        """Until the deadline, at least one; None without a deadline."""
        return None if math.isinf(self.deadline) else max(1.0, self.deadline - time.monotonic())

    def is_late(self, **left_out: str) -> bool:
        """Whether the deadline is over; then what is ``left_out`` (library, name) is named as absent."""
        late = time.monotonic() > self.deadline
        if late and left_out:
            self.absent.append({**left_out, "why": "left out for time"})
        return late

    def gather(self, subject: Subject, compiling: bool) -> None:
        """Make all candidates of other libraries; without ``compiling`` those that torch.compile makes are left out."""
        for library, make in MAKERS.items():
            if library == "torchao PT2E" and not compiling:
                self.absent.append({"library": library, "why": "compiles, which --quick leaves out"})
                continue
            if library == "torch.ao FX" and subject.tokens:
                continue  # FX does not trace transformers' models
            if self.is_late(library=library):
                continue
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    self.candidates += make(subject, compiling)
            except ImportError as error:
                self.absent.append({"library": library, "why": f"not installed ({error.name})"})
            except Exception as error:  # libraries fail in their own ways, and the others still take part
                line = (str(error).splitlines() or [""])[0][:160]
                self.absent.append({"library": library, "why": f"{type(error).__name__}: {line}"})
