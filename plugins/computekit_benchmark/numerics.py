"""Inside a measuring process: what half precision does to each layer, and which operation overflows first.

The model runs in fp32 and then, with the same weights and inputs, in bf16 and fp16, and in fp8 as fp8 is used: inputs
and weights of linear and convolution layers rounded to e4m3 with a scale per tensor (Micikevicius et al. 2022,
arXiv:2209.05433, section 3), all else in bf16. That rounding needs no device with fp8. Every operation is watched below
the modules, so that a sum or an exponential inside a forward function is named too.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch.utils._python_dispatch import TorchDispatchMode

from .jobs import Job
from .loading import ModelFault, blaming, example_inputs, first_tensor, load, prepare

if TYPE_CHECKING:
    import torch
    from torch import nn

PRECISIONS = ("bf16", "fp16", "fp8")


@dataclass
class Trace:
    """One run: the output of each leaf module by name, and the operations whose outputs are not finite."""

    outputs: dict[str, torch.Tensor] = field(default_factory=dict)
    faults: list[dict[str, Any]] = field(default_factory=list)


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes operations that make infinities or NaN out of finite inputs, with the module they run in."""

    def __init__(self, trace: Trace, stack: list[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.trace, self.stack = trace, stack

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        result = first_tensor(out)
        if result is not None and result.is_floating_point() and not _finite(result):
            given = [t for argument in args if (t := first_tensor(argument)) is not None and t.is_floating_point()]
            if all(_finite(t) for t in given):
                largest = max((float(t.abs().max()) for t in given if t.numel()), default=0.0)
                self.trace.faults.append(
                    {
                        "op": str(func.overloadpacket).removeprefix("aten."),
                        "module": self.stack[-1] or "the model itself",
                        "nonfinite": int((~result.isfinite()).sum()),
                        "of": result.numel(),
                        "largest_input": largest,
                    }
                )
        return out


def _finite(tensor: torch.Tensor) -> bool:
    wide = tensor.float() if tensor.dtype.itemsize == 1 else tensor  # fp8 has no isfinite
    return bool(wide.isfinite().all())


def run(job: Job) -> dict[str, Any]:
    """Compare precisions at batch size ``more["batch"]``.

    Returns for each of `PRECISIONS` (fp8 only where layers can use it): ``failed`` if the model cannot run in it,
    ``layers`` (name, relative error of the output
    against fp32 in the 2-norm, overflow and underflow counts, elements) in order of execution, and ``faults``
    (operations that overflowed, first one first).
    """
    import torch

    prepare(job)
    subject = job.subjects[0]
    model = load(subject, job)
    inputs = example_inputs(model, job, int(job.more["batch"]))
    dtypes = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.bfloat16}
    with blaming(subject.label, "a call in fp32"):
        exact = trace(model.module.float(), _cast(inputs, torch.float32))
    report: dict[str, Any] = {"fp32": {"layers": [], "faults": exact.faults}}
    for precision in PRECISIONS:
        try:
            with blaming(subject.label, f"a call in {precision}"):
                module = copy.deepcopy(model.module).to(dtypes[precision])
                if precision == "fp8" and not round_products(module):
                    continue
                low = trace(module, _cast(inputs, dtypes[precision]))
        except ModelFault as fault:
            report[precision] = {"layers": [], "faults": [], "failed": fault.problem}
            continue
        common = [name for name in exact.outputs if name in low.outputs]
        layers = [compare(name, exact.outputs[name], low.outputs[name]) for name in common]
        report[precision] = {"layers": layers, "faults": low.faults}
    return report


def trace(module: nn.Module, inputs: tuple[Any, ...]) -> Trace:
    """Run ``module`` once and watch it."""
    import torch

    seen = Trace()
    stack = [""]
    with _named(module, stack, seen), torch.no_grad(), _Watch(seen, stack):
        module(*inputs)
    return seen


def round_products(module: nn.Module) -> int:
    """Make the linear and convolution layers of ``module`` multiply what e4m3 can hold; returns how many there are."""
    from torch import nn

    found = [part for part in module.modules() if isinstance(part, (nn.Linear, nn.modules.conv._ConvNd))]
    for part in found:
        part.weight.data = to_e4m3(part.weight.data)
        part.register_forward_pre_hook(lambda _module, args: (to_e4m3(args[0]), *args[1:]))
    return len(found)


def to_e4m3(tensor: torch.Tensor) -> torch.Tensor:
    """The nearest values on the grid of float8_e4m3fn, scaled so that the largest is the grid's largest, 448."""
    import torch

    wide = tensor.float()
    scale = (wide.abs().max() / torch.finfo(torch.float8_e4m3fn).max).clamp(min=1e-30)
    return (wide / scale).to(torch.float8_e4m3fn).to(torch.float32).mul(scale).to(tensor.dtype)


@contextlib.contextmanager
def _named(module: nn.Module, stack: list[str], seen: Trace) -> Iterator[None]:
    """While it lasts, the top of ``stack`` is the module that runs, and outputs of leaf modules are kept."""
    handles = []
    for name, part in module.named_modules():

        def enter(_module: nn.Module, _args: Any, name: str = name) -> None:
            stack.append(name)

        def leave(_module: nn.Module, _args: Any, output: Any, name: str = name) -> None:
            stack.pop()
            tensor = first_tensor(output)
            if tensor is not None and tensor.is_floating_point() and next(_module.children(), None) is None:
                seen.outputs[name] = tensor.detach().clone()

        handles += [part.register_forward_pre_hook(enter), part.register_forward_hook(leave)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def compare(name: str, exact: torch.Tensor, low: torch.Tensor) -> dict[str, Any]:
    """How far one layer's output in low precision is from that in fp32.

    Overflow: finite in fp32 and not in low precision. Underflow: zero in low precision and not in fp32. The relative
    error is that of the elements which are finite in both.
    """
    import torch

    widened = low.double()
    exact = exact.double()
    both = exact.isfinite() & widened.isfinite()
    norm = float(torch.linalg.vector_norm(exact[both]))
    error = float(torch.linalg.vector_norm(widened[both] - exact[both]))
    return {
        "layer": name or "the model itself",
        "relative_error": error / norm if norm else error,
        "overflow": int((exact.isfinite() & ~widened.isfinite()).sum()),
        "underflow": int(((widened == 0) & (exact != 0)).sum()),
        "elements": exact.numel(),
    }


def _cast(inputs: tuple[Any, ...], dtype: torch.dtype) -> tuple[Any, ...]:
    import torch

    return tuple(x.to(dtype) if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in inputs)


def describe(label: str, report: dict[str, Any]) -> str:
    """The worst layers and every operation that overflowed, for a person."""
    from tabulate import tabulate

    lines = []
    for precision in (precision for precision in PRECISIONS if precision in report):
        if "failed" in report[precision]:
            lines.append(f"{label}: {report[precision]['failed']}")
            continue
        layers, faults = report[precision]["layers"], report[precision]["faults"]
        worst = sorted(layers, key=lambda layer: (-layer["overflow"], -layer["relative_error"]))[:5]
        rows = [[x["layer"], x["relative_error"], x["overflow"], x["underflow"], x["elements"]] for x in worst]
        headers = ["layer", "relative error", "overflow", "underflow", "elements"]
        lines += [f"{label} in {precision}, the {len(worst)} worst of {len(layers)} layers:"]
        lines += [tabulate(rows, headers, floatfmt=".2e")]
        lines += [
            f"overflow in {fault['op']} of {fault['module']}: {fault['nonfinite']} of {fault['of']} values, "
            f"from inputs up to {fault['largest_input']:.3g}"
            for fault in faults[:3]
        ] or [f"nothing overflows in {precision}"]
    return "\n".join(lines)
