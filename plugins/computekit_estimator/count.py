"""``computekit estimator count``: parameters, FLOPs and bytes of a model."""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from computekit import options
from computekit.inputs import Input

if TYPE_CHECKING:
    from computekit import StepRun
    from computekit.flops import FlopCount

    from .source import Subject
    from .transformer import Transformer

CONVENTION = (
    "A multiply-add is 2 FLOPs; forward_flops holds matrix products, convolutions and attention over all query-key "
    "pairs; element-wise work, norms and softmax are counted apart."
)


class Finite(click.FloatRange):
    """A number that is neither infinite nor NaN, at least ``min``."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number", param, ctx)
        return number


def dimensions(function: Callable[..., Any]) -> Callable[..., Any]:
    """Options that describe a transformer by its dimensions."""
    positive = click.IntRange(min=1)
    for decorate in (
        click.option("--untied", is_flag=True, help="Output projection with weights of its own."),
        click.option("--topk", type=positive, help="Experts that each token uses."),
        click.option("--experts", type=positive, help="Experts of a mixture-of-experts block."),
        click.option("--seq", type=positive, help="Sequence length, in tokens.  [default: 2048]"),
        click.option("--vocab", type=positive, help="Vocabulary size.  [default: 51200]"),
        click.option("--gated", is_flag=True, help="Gated feed-forward block (SwiGLU): three matrices, no biases."),
        click.option("--ffn", type=positive, help="Feed-forward width.  [default: 4 hidden]"),
        click.option("--kv-heads", type=positive, help="Key-value heads.  [default: heads]"),
        click.option("--heads", type=positive, help="Attention heads.  [default: hidden / 128]"),
        click.option("--hidden", type=positive, help="Hidden size."),
        click.option("--layers", type=positive, help="Layers; with --hidden it describes a transformer."),
        click.option("--config", type=options.InputPath("config"), help="Hugging Face config.json or its folder."),
    ):
        function = decorate(function)
    return function


def given_dimensions(asked: dict[str, Any]) -> Transformer | None:
    """The transformer that ``--layers --hidden ...`` describe; None when neither is given."""
    from .transformer import Transformer

    layers, hidden = asked["layers"], asked["hidden"]
    if layers is None and hidden is None:
        return None
    if layers is None or hidden is None:
        raise click.UsageError("--layers and --hidden belong together")
    if asked["topk"] and not asked["experts"]:
        raise click.UsageError("--topk needs --experts")
    heads = asked["heads"] or max(hidden // 128, 1)
    return Transformer(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=asked["kv_heads"] or heads,
        ffn=asked["ffn"] or 4 * hidden,
        gated=asked["gated"],
        vocab=asked["vocab"] or 51200,
        seq=asked["seq"] or 2048,
        experts=asked["experts"] or 0,
        topk=asked["topk"] or 0,
        tied=not asked["untied"],
        rotary=asked["gated"],
        bias=not asked["gated"],
        name=f"{layers}x{hidden}",
    )


def subject_of(
    model: Path | None, arch: str | None, arch_args: dict[str, Any] | None, asked: dict[str, Any],
    shapes: tuple[Input, ...] | None = None, trust_pickle: bool = False,
) -> Subject:  # fmt: skip
    """What the command line asks about; a usage error unless it names exactly one model."""
    from computekit.models import ArchRef

    from . import source

    dims = given_dimensions(asked)
    reference = ArchRef(arch, arch_args or {}) if arch else None
    ways = [name for name, given in (("MODEL", model), ("--config", asked["config"]), ("--layers", dims)) if given]
    if len(ways) > 1 or (reference and ways and ways != ["MODEL"]):
        raise click.UsageError(f"give one model, not {' and '.join([*ways, *(['--arch'] if reference else [])])}")
    if model is not None:
        return source.from_file(model, reference, shapes, trust_pickle)
    if asked["config"] is not None:
        return source.from_config_file(asked["config"], shapes or ((Input((asked["seq"],)),) if asked["seq"] else None))
    if dims is not None:
        return source.from_dimensions(dims)
    if reference is not None:
        return source.from_arch(reference, shapes)
    raise click.UsageError("give a model file, --arch, --config, or --layers and --hidden")


@click.command()
@click.argument("model", type=options.InputPath("model"), required=False)
@options.arch()
@dimensions
@options.input_shape
@options.trust_pickle
@options.step
def count(
    run: StepRun,
    model: Path | None,
    arch: str | None,
    arch_args: dict[str, Any] | None,
    input_shape: tuple[Input, ...] | None,
    trust_pickle: bool,
    **asked: Any,
) -> None:
    """Count parameters, FLOPs and bytes of a model: a file, an architecture, a Hugging Face config or dimensions.

    The model runs once on the meta device, so nothing is computed and no weight is needed. A file that holds weights
    without code has parameters and bytes; its FLOPs need --arch or --config.

    \b
    Example:
      computekit estimator count model.pt
      computekit estimator count --arch resnet --arch-args classes=10
      computekit estimator count --layers 96 --hidden 12288 --heads 96 --seq 2048
    """
    subject = subject_of(model, arch, arch_args, asked, input_shape, trust_pickle)
    if model is not None:
        run.input(model)
    row = run.row(run.label or subject.label, subject.sha256)
    put = Putter(row)
    put("parameters", subject.parameters, "")
    if subject.weight_bytes is not None:
        put("weight_bytes", subject.weight_bytes, "B")
    run.note(CONVENTION)
    if subject.dims is not None and subject.module is None:
        _put_dimensions(put, subject.dims, subject.tokens or subject.dims.seq)
        return
    if subject.module is None or subject.inputs is None:
        for key in ("forward_flops", "backward_flops", "step_flops"):
            put.unknown(key, "FLOP", subject.why_no_flops)
        return
    _put_counted(run, put, subject)


def tell(run: StepRun, text: str) -> None:
    """A note in the record that the person at the terminal sees too."""
    run.note(text)
    run.say(text)


class Putter:
    """Fills one row of a record."""

    def __init__(self, row: Any) -> None:
        self.row = row

    def __call__(
        self, key: str, value: float | int | str | None, unit: str, method: str | None = None, **more: Any
    ) -> None:
        from computekit import Quantity

        self.row.quantities[key] = Quantity(value=value, unit=unit, method=method, **more)

    def unknown(self, key: str, unit: str, reason: str) -> None:
        """Name a gap."""
        self(key, None, unit, reason=reason)


def _put_dimensions(put: Putter, dims: Transformer, tokens: int) -> None:
    forward = dims.forward_flops(tokens)
    if dims.experts:
        put("active_parameters", dims.active_parameters, "")
    put("forward_flops", forward, "FLOP", f"per sequence of {tokens} tokens, full attention")
    put("forward_macs", forward // 2, "MAC")
    put(
        "forward_causal_flops", dims.forward_flops(tokens, causal=True), "FLOP", "causal attention: unmasked pairs only"
    )
    put("backward_flops", 2 * forward, "FLOP", "two products for each of the forward pass")
    put("step_flops", 3 * forward, "FLOP", "forward and backward of one sample, nothing recomputed")
    put("six_nd_flops", 6 * dims.active_parameters * tokens, "FLOP", f"6 N D with N = active parameters, D = {tokens}")


def _put_counted(run: StepRun, put: Putter, subject: Subject) -> None:
    from computekit import flops

    asked = subject.tokens
    try:
        cost = counted(subject)
    except flops.CountFailed as error:
        if subject.dims is None:
            for key in ("forward_flops", "backward_flops", "step_flops"):
                put.unknown(key, "FLOP", str(error))
            return
        run.note(f"FLOPs come from the dimensions, for {error}")
        _put_dimensions(put, subject.dims, subject.tokens or subject.dims.seq)
        return
    where = f"{subject.sample}, run on the {cost.ran_on} device{subject.how}"
    if subject.tokens != asked:
        where += f"; of {subject.tokens} tokens"
        tell(run, f"a sample of {subject.tokens} tokens was counted, for {asked} take more than {MOST_OPERATORS:,} "
                  "operators")  # fmt: skip
    if subject.dims is not None and subject.dims.experts:
        put("active_parameters", subject.dims.active_parameters, "")
    put("forward_flops", cost.forward, "FLOP", where)
    put("forward_macs", cost.macs, "MAC")
    put("forward_causal_flops", cost.forward_causal, "FLOP", "causal attention: unmasked pairs only")
    put("forward_other_flops", cost.forward_other, "FLOP", "element-wise, norms, softmax")
    if cost.backward is None:
        put.unknown("backward_flops", "FLOP", "no parameter requires a gradient, or an operator has none")
    else:
        put("backward_flops", cost.backward, "FLOP", where)
        put("step_flops", cost.total, "FLOP", f"forward and backward of {subject.sample}, nothing recomputed")
    if subject.tokens and subject.parameters:
        active = subject.dims.active_parameters if subject.dims and subject.dims.experts else subject.parameters
        put("six_nd_flops", 6 * active * subject.tokens, "FLOP", f"6 N D with D = {subject.tokens} tokens")
    put("activation_bytes", cost.activation_bytes, "B", "what the operators of one forward pass write")
    put("moved_bytes", cost.moved_bytes, "B", "read and written if every operator is a kernel of its own")
    for text in subject.notes():
        tell(run, text)
    for gap in cost.unknown:
        tell(run, f"not counted: {gap.name}, {gap.calls} calls, {gap.share:.1%} of all elements written (no formula)")
    for text in _gaps(cost, subject.parameters or 0):
        tell(run, text)
    run.details["by_module"] = {
        name or "(all)": {"forward_flops": c.forward, "backward_flops": c.backward,
                          "activation_bytes": c.activation_bytes, "moved_bytes": c.moved_bytes}
        for name, c in cost.by_module.items()
    }  # fmt: skip
    run.details["by_op"] = {
        name: {"calls": c.calls, "forward_flops": c.forward + c.forward_other,
               "backward_flops": c.backward + c.backward_other}
        for name, c in cost.by_op.items()
    }  # fmt: skip
    run.details["unknown_ops"] = [{"name": g.name, "calls": g.calls, "share": g.share} for g in cost.unknown]
    if len(cost.by_module) > 1:
        run.show(_module_table(cost))


def _gaps(cost: FlopCount, parameters: int, limit: int = 5) -> list[str]:
    """Which modules of note (a thousandth of all parameters) the sample, or the way back from it, did not reach."""
    said = []
    for what, modules in (
        ("not run by this sample", cost.idle),
        ("no gradient reaches, so nothing is counted backward", cost.without_gradient),
    ):
        most = sorted(((n, name) for name, n in modules.items() if n * 1000 >= parameters), key=lambda item: -item[0])
        said += [f"{what}: {name}, {n:,} parameters" for n, name in most[:limit]]
        said += [f"{what}: {len(most) - limit} more modules"] if len(most) > limit else []
    return said


MOST_OPERATORS = 100_000
"""Operators of one count, some ten seconds; the largest models of today run a fifth of them. Code without fast
kernels for its recurrence runs a dozen of them for each token in each layer."""
FEW_OPERATORS = 40_000
"""Above these, `counted` finds out first whether the operators are those of a loop over tokens."""
FEWER_TOKENS = 16
"""Length of the sample that is counted where the cost of a longer one cannot be told."""


def counted(subject: Subject) -> FlopCount:
    """The count of a subject that has a module, with the experts that each token uses where the code runs them all.

    Raises:
        CountFailed: it does not run, or it runs too many operators whatever the sample.
    """
    from . import experts

    cost = _of_any_length(subject)
    every, chosen = subject.experts
    if not (every > chosen > 0 and subject.tokens):
        return cost
    routed = experts.routed(cost, subject.module, every, chosen, subject.tokens)
    if routed is not None:
        subject.experts_note = (
            f"the code runs all {every} experts for each token, {cost.forward:,} FLOP forward; counted are the "
            f"{chosen} that count"
        )
    return routed or cost


def _of_any_length(subject: Subject) -> FlopCount:
    """The count of the subject's sample; of code that loops over tokens, from those of shorter samples."""
    from computekit import flops

    from . import lengths

    tokens, shorten = subject.tokens, subject.shorten
    looping = shorten is not None and tokens is not None and tokens > FEWER_TOKENS
    try:
        return _counted(subject, FEW_OPERATORS if looping else MOST_OPERATORS)
    except flops.TooManyOperators as error:
        if not looping or shorten is None or tokens is None:
            raise flops.CountFailed(f"{error}; give fewer tokens with --seq") from error
    for step in lengths.STEPS:
        counts = []
        with contextlib.suppress(flops.TooManyOperators):
            for length in lengths.samples(step):
                shorten(length)
                counts.append(_counted(subject, MOST_OPERATORS))
            shorten(tokens)
            if whole := lengths.extended(counts, step, tokens):
                subject.how = f"; from samples of {step} to {4 * step} tokens, as the code runs token by token"
                return whole
    with contextlib.suppress(flops.TooManyOperators):
        shorten(tokens)
        return _counted(subject, MOST_OPERATORS)
    try:
        shorten(FEWER_TOKENS)
        return _counted(subject, MOST_OPERATORS)
    except flops.TooManyOperators as error:
        raise flops.CountFailed(f"{error}, even for {FEWER_TOKENS} tokens") from error


def _counted(subject: Subject, most: int) -> FlopCount:
    """Code that wants more than the main input gets all that it takes; code that needs values is built with real
    weights; products over groups of experts exist in bf16 only.
    """
    from computekit import flops

    from . import source, towers

    assert subject.module is not None and subject.inputs is not None
    ways: list[tuple[Callable[[], Any], Any]] = [
        (lambda: subject.module, subject.kwargs),
        (lambda: subject.module, subject.all_kwargs),
        (_in_bf16(subject), subject.kwargs),
    ]
    if subject.rebuild is not None:
        ways += [(subject.rebuild, subject.kwargs), (subject.rebuild, subject.all_kwargs)]
    failed: list[tuple[int, flops.CountFailed]] = []
    logging.disable(logging.WARNING)  # that a model runs without its fast kernels is no concern of a count
    try:
        for backward, (make, kwargs) in itertools.product((True, False), ways):
            try:
                with source.one_sequence():
                    module = make()
                    cost = flops.count(module, subject.inputs, kwargs, backward=backward, max_operators=most)
                    if "pixel_values" not in kwargs:
                        return towers.joined(cost, module, subject)
                    if subject.tokens is not None:
                        subject.tower_notes["forward"] = f"one image of {towers.size(kwargs)} is counted with the text"
                    return cost
            except flops.TooManyOperators:
                raise
            except flops.CountFailed as error:
                failed.append((len(kwargs), error))
    finally:
        logging.disable(logging.NOTSET)
    raise max(failed, key=lambda each: each[0])[1]  # the first of those that got most of what the model takes


def _in_bf16(subject: Subject) -> Callable[[], Any]:
    def make() -> Any:
        import copy

        import torch

        return copy.deepcopy(subject.module).to(torch.bfloat16)  # type: ignore[union-attr]

    return make


def _module_table(cost: FlopCount, depth: int = 1, limit: int = 30) -> str:
    """The outer modules and their share."""
    from tabulate import tabulate

    shown = [(name, c) for name, c in cost.by_module.items() if name and name.count(".") < depth and c.calls][:limit]
    total = max(cost.forward, 1)
    rows = [(name, f"{c.forward:,}", f"{c.forward / total:.1%}", f"{c.activation_bytes:,}") for name, c in shown]
    return tabulate(rows, ["module", "forward FLOPs", "share", "activation bytes"], tablefmt="plain",
                    disable_numparse=True, colalign=("left", "right", "right", "right"))  # fmt: skip
