"""What the model says about one published run, in the unit in which it was published."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from . import images, infer, memory, plan, published, spelling, time, units
from .constants import CONSTANTS, Constants
from .divisors import divisors
from .errors import CannotPredict
from .hardware import Gpu
from .layout import Layout
from .parallel import require_gpu
from .runs import Run
from .transformer import Transformer

DAY = 86400.0


def predict(run: Run, constants: Constants = CONSTANTS) -> float:
    """The predicted figure of ``run`` in its published unit.

    Raises:
        ComputekitError: there is no prediction; the message is the reason.
    """
    kind = kind_of(run)
    if kind not in KINDS:
        raise CannotPredict(f"no model of kind {run.kind!r}; known: {', '.join(KINDS)}")
    in_unit = units.factor(kind, run.text("unit"))
    return in_unit * float(KINDS[kind](run, constants))


def kind_of(run: Run) -> str:
    """The kind of figure, whatever the table calls it."""
    return spelling.kind(run.kind, tuple(KINDS))


def assumptions(run: Run) -> tuple[str, ...]:
    """What the prediction of a training run takes for granted because it is not published."""
    if kind_of(run) not in _TRAINING or run.number("infer_batch"):
        return ()
    found = []
    if published.devices_of(run) is None:
        found.append("the number of devices")
    if not published.has_layout(run):
        found.append("the fastest layout that fits")
    if not run.text("global_batch") and run.text("tokens"):
        found.append("the batch")
    return tuple(found)


def layouts(run: Run, model: Transformer, gpu: Gpu) -> list[Layout]:
    """The run's layout; where the table leaves out microbatch or interleaving, all that fit in memory."""
    if not published.has_layout(run):
        return [_searched(run, model, gpu)]
    layout = published.layout_of(run, model, gpu)
    if layout.microbatch and layout.vp:
        return [layout]
    per_stage = -(-model.layers // layout.pp)
    chunks = divisors(per_stage) if not layout.vp else [layout.vp]
    tried: list[tuple[float, Layout]] = []
    for sharding, recompute in published.unsaid(run, layout):
        for micro in (1, 2, 4, 8) if not layout.microbatch else (layout.microbatch,):
            for vp in chunks:
                choice = replace(layout, microbatch=micro, vp=vp, recompute=recompute, sharding=sharding)
                many = choice.microbatches
                if many < 1 or many % 1 or (vp > 1 and many % layout.pp):
                    continue
                tried.append((float(memory.training(model, choice, gpu).total), choice))
        fitting = [choice for needed, choice in tried if needed <= gpu.memory_bytes]
        if fitting:  # nothing is sharded or computed twice where it fits
            return fitting
    if not tried:
        raise CannotPredict("microbatch is not published, and none divides the batch")
    least = min(tried, key=lambda pair: pair[0])[1]
    return [choice for _, choice in tried if choice == replace(least, vp=choice.vp)]


ASSUMED_DEVICES = (2048, 4096, 8192, 16384)
"""Tried in this order where a row has no number of devices (LLaMA and Llama 2 were trained on about 2,000)."""


def _searched(run: Run, model: Transformer, gpu: Gpu) -> Layout:
    """The fastest layout that fits, for a row that has none."""
    given = published.devices_of(run)
    recompute = (spelling.recompute(run.text("recompute")),) if run.text("recompute") else plan.RECOMPUTE
    sharding = (spelling.sharding(run.text("sharding")),) if run.text("sharding") else plan.SHARDING
    for count in (given,) if given else ASSUMED_DEVICES:
        batch = published.batch_of(run, model, 1)
        found = plan.search(
            model, gpu, count, batch, published.precision_of(run, gpu), keep=1, recompute=recompute, sharding=sharding,
            base=Layout(expert_overlap=published.dual_pipe(run)),
        )  # fmt: skip
        if found.choices:
            return found.choices[0].layout
    raise CannotPredict(
        f"the layout (tp, pp, dp) is not published, and none of {given or ASSUMED_DEVICES[-1]} devices divides the "
        "batch and fits in memory"
    )


def _step(run: Run, c: Constants) -> tuple[float, Layout, Transformer, Gpu]:
    """Step time under the run's layout, or the fastest of those it may have used."""
    model, gpu = published.model_of(run), published.gpu_of(run)
    require_gpu(gpu)
    options = [(float(time.step(model, choice, gpu, c).total), choice) for choice in layouts(run, model, gpu)]
    seconds, layout = min(options, key=lambda option: option[0])
    return seconds, layout, model, gpu


def _iter_time(run: Run, c: Constants) -> float:
    return images.seconds(run, c) if _is_image(run) else _step(run, c)[0]


def _tokens_per_s(run: Run, c: Constants) -> float:
    seconds, layout, model, _ = _step(run, c)
    return float(layout.global_batch * model.seq / seconds / layout.num_gpus)


def _samples_per_s(run: Run, c: Constants) -> float:
    if _is_image(run):
        devices = 1 if _per_device(run) else published.devices_of(run) or 1
        return images.batch(run) * devices / images.seconds(run, c)
    if run.number("infer_batch"):
        serving = _serving(run, published.model_of(run))
        return 1e3 * float(serving.batch) / _request(run, c)
    seconds, layout, _, _ = _step(run, c)
    return float(layout.global_batch / seconds / (layout.num_gpus if _per_device(run) else 1))


def _all_tokens_per_s(run: Run, c: Constants) -> float:
    """Of a whole training job; of a serving row the new tokens of all sequences, prefill included."""
    if run.number("infer_batch"):
        serving = _serving(run, published.model_of(run))
        rate = serving.batch * run.whole("out_len") / _request(run, c) * 1e3
        return float(rate / (serving.tp * serving.pp if _per_device(run) else 1))
    seconds, layout, model, _ = _step(run, c)
    return float(layout.global_batch * model.seq / seconds / (layout.num_gpus if _per_device(run) else 1))


def _per_device(run: Run) -> bool:
    return bool(re.search(r"per_?(gpu|device|chip)|/\s?(gpu|device|chip)", f"{run.kind} {run.text('unit')}".lower()))


def _achieved(run: Run, c: Constants, hardware: bool) -> tuple[float, Gpu, Layout]:
    """FLOP/s of each device: the model's (three forward passes), or with what was recomputed."""
    seconds, layout, model, gpu = _step(run, c)
    passes = layout.hardware_passes if hardware else 3.0
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
    return (run.number("tokens") or run.whole("tokens")) / (layout.global_batch * model.seq) * seconds, layout


def _train_days(run: Run, c: Constants) -> float:
    return _whole_training(run, c)[0] / DAY


def _gpu_hours(run: Run, c: Constants) -> float:
    seconds, layout = _whole_training(run, c)
    return float(seconds * layout.num_gpus / 3600)


def _peak_memory(run: Run, c: Constants) -> float:
    model, gpu = published.model_of(run), published.gpu_of(run)
    if run.number("infer_batch"):
        context = run.whole("in_len") + run.whole("out_len", 1)
        return float(infer.memory_bytes(model, _serving(run, model), context)) / 1e9
    parts = memory.training(model, layouts(run, model, gpu)[0], gpu)
    return float(parts.reserved if published.of_allocator(run) else parts.total) / 1e9


def _serving(run: Run, model: Transformer) -> infer.Serving:
    pp = run.whole("pp", 1)
    serving = infer.Serving(
        batch=run.whole("infer_batch", 1),
        tp=run.whole("tp", max(run.whole("num_gpus", 1) // pp, 1)),
        pp=pp,
        precision=spelling.weight_format(run.text("precision") or "bf16"),
        kv_bytes=published.cache_element(run),
        graphs="fastertransformer" not in run.text("source").lower(),
        group_kernels=published.group_kernels(run),
    )
    infer.check(model, serving)
    return serving


def _decode(run: Run, c: Constants) -> float:
    model, gpu = published.model_of(run), published.gpu_of(run)
    context = run.whole("in_len", 1) + run.whole("out_len", 200) / 2
    return 1e3 * float(infer.decode(model, _serving(run, model), gpu, context, c))


def _prefill(run: Run, c: Constants) -> float:
    model, gpu = published.model_of(run), published.gpu_of(run)
    return 1e3 * float(infer.prefill(model, _serving(run, model), gpu, run.whole("in_len"), c))


def _decode_rate(run: Run, c: Constants) -> float:
    return 1e3 * run.whole("infer_batch", 1) / _decode(run, c)


def _prefill_rate(run: Run, c: Constants) -> float:
    return 1e3 * run.whole("infer_batch", 1) * run.whole("in_len") / _prefill(run, c)


def _request(run: Run, c: Constants) -> float:
    if _is_image(run):
        return 1e3 * images.seconds(run, c)
    model, gpu = published.model_of(run), published.gpu_of(run)
    serving = _serving(run, model)
    return 1e3 * float(infer.request(model, serving, gpu, run.whole("in_len"), run.whole("out_len"), c))


def _parameters(run: Run, _c: Constants) -> float:
    if _is_image(run):
        return float(sum(p.numel() for p in images.model(run).parameters()))
    model = published.model_of(run)
    return model.active_parameters if "active" in run.text("unit") else model.parameters


def _forward_flops(run: Run, _c: Constants) -> float:
    if _is_image(run):
        return float(images.count(run).forward) * run.whole("infer_batch", 1)
    return published.model_of(run).forward_flops() * run.whole("infer_batch", 1)


def _is_image(run: Run) -> bool:
    return run.text("model").startswith("torchvision") or images.named(run)


def _train_flops(run: Run, _c: Constants) -> float:
    """6 N D with N the active parameters; without tokens, one sequence forward and backward."""
    model = published.model_of(run)
    tokens = run.number("tokens")
    if tokens is None:
        return 3.0 * model.forward_flops()
    return 6.0 * model.active_parameters * tokens


def _checkpoint(run: Run, _c: Constants) -> float:
    """Weights and both moments of Adam in fp32."""
    return 12.0 * published.model_of(run).parameters


KINDS: dict[str, Callable[[Run, Constants], float]] = {
    "iter_time_s": _iter_time,
    "tokens_per_s_per_gpu": _tokens_per_s,
    "tokens_per_s": _all_tokens_per_s,
    "samples_per_s": _samples_per_s,
    "tflops_per_gpu": _tflops,
    "mfu": _mfu,
    "hfu": _hfu,
    "train_days": _train_days,
    "train_gpu_hours": _gpu_hours,
    "peak_memory_gb": _peak_memory,
    "decode_latency_ms": _decode,
    "prefill": _prefill,
    "decode_tokens_per_s": _decode_rate,
    "prefill_tokens_per_s": _prefill_rate,
    "e2e_latency_ms": _request,
    "param_count": _parameters,
    "forward_flops": _forward_flops,
    "train_flops": _train_flops,
    "checkpoint_bytes": _checkpoint,
}

_TRAINING = ("iter_time_s", "tokens_per_s_per_gpu", "tokens_per_s", "samples_per_s", "tflops_per_gpu", "mfu", "hfu",
             "train_days", "train_gpu_hours")  # fmt: skip
