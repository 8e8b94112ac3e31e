"""What the model says about one published run, in the unit in which it was published."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from . import infer, memory, runs, time, units
from .constants import CONSTANTS, Constants
from .errors import CannotPredict
from .hardware import Gpu
from .layout import Layout
from .parallel import require_gpu
from .runs import Run
from .transformer import Transformer

DAY = 86400.0
PF_DAY = 1e15 * DAY


def predict(run: Run, constants: Constants = CONSTANTS) -> float:
    """The predicted figure of ``run``.

    Raises:
        ComputekitError: there is no prediction; the message is the reason.
    """
    if run.kind not in KINDS:
        raise CannotPredict(f"no model of kind {run.kind!r}; known: {', '.join(KINDS)}")
    in_unit = units.factor(run.kind, run.text("unit"))
    return in_unit * float(KINDS[run.kind](run, constants))


def layouts(run: Run, model: Transformer, gpu: Gpu) -> list[Layout]:
    """The run's layout; where the table leaves out microbatch or interleaving, all that fit in memory."""
    layout = runs.layout_of(run, model, gpu)
    if layout.microbatch and layout.vp:
        return [layout]
    per_stage = model.layers // layout.pp
    chunks = [v for v in range(1, per_stage + 1) if per_stage % v == 0] if not layout.vp else [layout.vp]
    candidates = []
    for micro in (1, 2, 4, 8) if not layout.microbatch else (layout.microbatch,):
        for vp in chunks:
            choice = replace(layout, microbatch=micro, vp=vp)
            many = choice.microbatches
            if many < 1 or many % 1 or (vp > 1 and many % layout.pp):
                continue
            if memory.training(model, choice, gpu).total <= gpu.memory_bytes or micro == vp == 1:
                candidates.append(choice)
    if not candidates:
        raise CannotPredict("microbatch is not published, and none divides the batch")
    return candidates


def _step(run: Run, c: Constants) -> tuple[float, Layout, Transformer, Gpu]:
    """Step time under the run's layout, or the fastest of those it may have used."""
    model, gpu = runs.model_of(run), runs.gpu_of(run)
    require_gpu(gpu)
    options = [(float(time.step(model, choice, gpu, c).total), choice) for choice in layouts(run, model, gpu)]
    seconds, layout = min(options, key=lambda option: option[0])
    return seconds, layout, model, gpu


def _iter_time(run: Run, c: Constants) -> float:
    return _step(run, c)[0]


def _tokens_per_s(run: Run, c: Constants) -> float:
    seconds, layout, model, _ = _step(run, c)
    return float(layout.global_batch * model.seq / seconds / layout.num_gpus)


def _achieved(run: Run, c: Constants, hardware: bool) -> tuple[float, Gpu, Layout]:
    """FLOP/s of each device: the model's (three forward passes), or with what was recomputed (four)."""
    seconds, layout, model, gpu = _step(run, c)
    passes = 4 if hardware and layout.recompute == "full" else 3
    return passes * layout.global_batch * model.forward_flops() / seconds / layout.num_gpus, gpu, layout


def _tflops(run: Run, c: Constants) -> float:
    return _achieved(run, c, hardware="model TFLOP" not in run.text("definition"))[0] / 1e12


def _mfu(run: Run, c: Constants) -> float:
    rate, gpu, layout = _achieved(run, c, hardware=False)
    return rate / gpu.peak(layout.precision)


def _hfu(run: Run, c: Constants) -> float:
    rate, gpu, layout = _achieved(run, c, hardware=True)
    return rate / gpu.peak(layout.precision)


def _whole_training(run: Run, c: Constants) -> tuple[float, Layout]:
    seconds, layout, model, _ = _step(run, c)
    return run.whole("tokens") / (layout.global_batch * model.seq) * seconds, layout


def _train_days(run: Run, c: Constants) -> float:
    return _whole_training(run, c)[0] / DAY


def _gpu_hours(run: Run, c: Constants) -> float:
    seconds, layout = _whole_training(run, c)
    return float(seconds * layout.num_gpus / 3600)


def _peak_memory(run: Run, c: Constants) -> float:
    model, gpu = runs.model_of(run), runs.gpu_of(run)
    if run.number("infer_batch"):
        context = run.whole("in_len") + run.whole("out_len", 1)
        return float(infer.memory_bytes(model, _serving(run, model), context)) / 1e9
    return float(memory.training(model, layouts(run, model, gpu)[0], gpu).total) / 1e9


def _serving(run: Run, model: Transformer) -> infer.Serving:
    serving = infer.Serving(
        batch=run.whole("infer_batch"),
        tp=run.whole("tp", 1),
        pp=run.whole("pp", 1),
        precision=run.text("precision") or "bf16",
        graphs="fastertransformer" not in run.text("source").lower(),
    )
    infer.check(model, serving)
    return serving


def _decode(run: Run, c: Constants) -> float:
    model, gpu = runs.model_of(run), runs.gpu_of(run)
    context = run.whole("in_len", 1) + run.whole("out_len", 200) / 2
    return 1e3 * float(infer.decode(model, _serving(run, model), gpu, context, c))


def _prefill(run: Run, c: Constants) -> float:
    model, gpu = runs.model_of(run), runs.gpu_of(run)
    return 1e3 * float(infer.prefill(model, _serving(run, model), gpu, run.whole("in_len"), c))


def _request(run: Run, c: Constants) -> float:
    model, gpu = runs.model_of(run), runs.gpu_of(run)
    serving = _serving(run, model)
    return 1e3 * float(infer.request(model, serving, gpu, run.whole("in_len"), run.whole("out_len"), c))


def _parameters(run: Run, _c: Constants) -> float:
    if run.text("model").startswith("torchvision"):
        return float(sum(p.numel() for p in _torchvision(run).parameters()))
    model = runs.model_of(run)
    return model.active_parameters if "active" in run.text("unit") else model.parameters


def _forward_flops(run: Run, _c: Constants) -> float:
    if not run.text("model").startswith("torchvision"):
        model = runs.model_of(run)
        return model.forward_flops() * run.whole("infer_batch", 1)
    import torch

    from computekit import flops

    side = run.whole("seq")
    cost = flops.count(_torchvision(run), torch.zeros(1, 3, side, side), backward=False)
    return cost.macs / 1e9 if "MAC" in run.text("unit") else float(cost.forward)


def _torchvision(run: Run) -> Any:
    if importlib.util.find_spec("torchvision") is None:
        raise CannotPredict("the model's code is in torchvision, which is not installed")
    import torch

    try:
        import torchvision  # type: ignore[import-not-found, unused-ignore]
    except (ImportError, RuntimeError) as error:  # built for another torch
        raise CannotPredict(f"torchvision does not load: {error}") from error
    name = run.text("model").split()[-1].lower()
    try:
        with torch.device("meta"):
            return torchvision.models.get_model(name).eval()
    except NotImplementedError:  # a constructor that reads values of its own tensors
        return torchvision.models.get_model(name).eval()
    except ValueError as error:
        raise CannotPredict(f"torchvision has no model {name!r}") from error


def _train_flops(run: Run, _c: Constants) -> float:
    """6 N D with N the active parameters; without tokens, one sequence forward and backward."""
    model = runs.model_of(run)
    tokens = run.number("tokens")
    if tokens is None:
        return 3.0 * model.forward_flops()
    return 6.0 * model.active_parameters * tokens / (PF_DAY if "PF-day" in run.text("unit") else 1.0)


def _checkpoint(run: Run, _c: Constants) -> float:
    """Weights and both moments of Adam in fp32."""
    return 12.0 * runs.model_of(run).parameters


KINDS: dict[str, Callable[[Run, Constants], float]] = {
    "iter_time_s": _iter_time,
    "tokens_per_s_per_gpu": _tokens_per_s,
    "tflops_per_gpu": _tflops,
    "mfu": _mfu,
    "hfu": _hfu,
    "train_days": _train_days,
    "train_gpu_hours": _gpu_hours,
    "peak_memory_gb": _peak_memory,
    "decode_latency_ms": _decode,
    "prefill": _prefill,
    "e2e_latency_ms": _request,
    "param_count": _parameters,
    "forward_flops": _forward_flops,
    "train_flops": _train_flops,
    "checkpoint_bytes": _checkpoint,
}
