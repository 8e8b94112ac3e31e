"""The quantize plugin: ``computekit quantize`` stores the weights of a model file in fewer bits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import computekit
from computekit import hookspecs, implements

from . import backend, schemes
from .backend import Backend, Export
from .schemes import Scheme

if TYPE_CHECKING:
    import pluggy

__all__ = ["Backend", "Export", "Scheme"]


@implements(hookspecs.computekit_addhooks)
def computekit_addhooks(manager: pluggy.PluginManager) -> None:
    manager.add_hookspecs(schemes)
    manager.add_hookspecs(backend)


@implements(schemes.computekit_quantization_schemes)
def computekit_quantization_schemes() -> list[Scheme]:
    return schemes.BUILT_IN


@implements(backend.computekit_quantization_backends)
def computekit_quantization_backends() -> list[Backend]:
    from . import onnx_backend, openvino_backend, torch_backends

    return [torch_backends.TORCH, torch_backends.COMPILE, onnx_backend.BACKEND, openvino_backend.BACKEND]


@implements(hookspecs.computekit_runtimes)
def computekit_runtimes() -> list[computekit.Runtime]:
    return [computekit.Runtime(b.name, b.summary, b.load) for b in backend.known().values()]


@implements(hookspecs.computekit_steps)
def computekit_steps() -> list[computekit.Step]:
    summary = "Store the weights of a model file in fewer bits."
    quantize = computekit.LazyCommand("quantize", f"{__name__}.command:quantize", summary)
    return [computekit.Step("quantize", quantize, takes="model", gives="model", keeps_kind=True)]


@implements(hookspecs.computekit_columns)
def computekit_columns() -> list[computekit.Column]:
    return [
        computekit.Column("compression_ratio", "compression", "x", digits=3, better="higher", detail=True, order=12),
        computekit.Column("cosine", "cosine", digits=4, better="higher", interval=True, order=21),
        computekit.Column("coverage", "quantized", "%", 0.01, digits=3, detail=True, order=13),
    ]
