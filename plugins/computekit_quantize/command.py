"""``computekit quantize``: the command line, and the steps from a plan to a file and its record."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import computekit
from computekit import ComputekitError, FileProblem, options

if TYPE_CHECKING:
    from computekit.models import ModelFile

    from .coverage import Coverage
    from .gate import Search
    from .plan import Decision

MISSED = 3
"""Exit status when no choice of weights keeps the metric within --max-drop; the nearest one is written all the same."""

MIN_COVERAGE = 0.10
"""Share of a model's bytes below which quantizing it is refused as a no-op."""
NOTABLE_REST = 0.2
"""Share of the input's bytes besides the weights above which a note says so."""


class NoGain(ComputekitError):
    """Quantizing would not make the file meaningfully smaller."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(path, why)
        self.path, self.why = path, why

    def __str__(self) -> str:
        return f"{self.path}: {self.why}; nothing was written (--allow-noop writes it all the same)"


@click.command()
@options.model
@click.option("--int8", is_flag=True, help="8-bit integers, one scale per output channel.")
@click.option("--int4", is_flag=True, help="4-bit integers, a scale per group of values.")
@click.option("--scheme", type=options.HostNames("computekit_quantization_schemes", "name"),
              help="A scheme by name; plugins add more.")  # fmt: skip
@click.option(
    "--group-size", type=click.IntRange(min=1), help="Values that share a scale.  [default: int8 a row, int4 32]"
)
@click.option(
    "--activations",
    type=click.Choice(["float", "dynamic"]),
    default="float",
    show_default=True,
    help="dynamic: linear layers compute in 8-bit integers on the CPU, with a scale per token. Needs --int8.",
)
@click.option("--include", multiple=True, metavar="PATTERN", help="Quantize these tensors too, e.g. '*.expert.*'.")
@click.option("--exclude", multiple=True, metavar="PATTERN", help="Leave these tensors as they are.")
@click.option("--allow-noop", is_flag=True, help="Write the file even if little of it can be quantized.")
@options.data(help="Measure the metric on this data set's test split before and after.")
@click.option("--dry-run", is_flag=True, help="Show what would be done to which tensor, and write nothing.")
@click.option("--sensitivity", is_flag=True, help="Measure what quantizing each weight alone costs. Needs --data.")
@click.option(
    "--max-drop",
    type=options.Number(at_least=0),
    help="Most that may be lost on the validation split: points of accuracy, or percent of perplexity. The weights "
    "that cost most stay as they are; exit 3 if that is not enough. Needs --data.",
)
@options.batch_size(256)
@options.arch()
@options.trust_pickle
@options.step
def quantize(
    run: computekit.StepRun,
    model: Path,
    int8: bool,
    int4: bool,
    scheme: str | None,
    group_size: int | None,
    activations: str,
    include: tuple[str, ...],
    exclude: tuple[str, ...],
    allow_noop: bool,
    data: str | None,
    batch_size: int,
    arch: str | None,
    arch_args: dict[str, Any] | None,
    trust_pickle: bool,
    dry_run: bool,
    sensitivity: bool,
    max_drop: float | None,
) -> int:
    """Store the weights of a model file in fewer bits: a file in, a smaller file of the same kind out.

    Linear, convolution and embedding weights become integers with a scale per output channel, held as plain tensors
    that torch.load(weights_only=True) and safetensors open anywhere. No code is needed: what each tensor is follows
    from its name, shape and neighbours, and everything else passes through untouched. computekit.load_into(module,
    FILE) gives a runnable module, computekit dequantize a file of floats.

    \b
    Example:
      computekit quantize --int8 model.pt
      computekit quantize --int8 model.pt --data digits --exclude 'head.*' -o small.pt
      computekit quantize --int4 model.pt --data digits --max-drop 0.5 --sensitivity
    """
    scheme = _the_one(int8, int4, scheme)
    if data is None and (sensitivity or max_drop is not None):
        raise click.UsageError("--sensitivity and --max-drop need --data")
    from computekit import files
    from computekit.models import ArchRef, roles

    from . import coverage, gate, metric, plan, schemes, writing

    how = schemes.get(scheme)
    group = group_size or how.default_group
    if activations == "dynamic" and (how.bits != 8 or group is not None):
        raise click.UsageError("--activations dynamic needs 8-bit weights with one scale per row: --int8")
    request = plan.Request(plan.Treatment(how, group, activations), include, exclude)
    source = _open(model, trust_pickle)
    run.input(model)
    decisions = plan.make(source, request)
    report = coverage.Coverage(decisions)
    if dry_run:
        run.show(report.tensor_table())
        _put_coverage(run, report)
        return 0
    if report.share < MIN_COVERAGE and not allow_noop:
        raise NoGain(model, f"only {report.share:.1%} of the bytes can be quantized ({report.reasons()})")
    size_before = files.size_bytes(model)
    gauge, gated = None, 0.0
    if data is not None:
        arch_ref = ArchRef(arch, arch_args or {}) if arch else None
        gauge = metric.Gauge(run, computekit.load_data(data), arch_ref, batch_size, trust_pickle)
        gauge.measure(model)
        if sensitivity or max_drop is not None:
            search = gate.Search(run, gauge, source, decisions)
            decisions = _search(run, search, sensitivity, max_drop)
            report = coverage.Coverage(decisions)
    with run.writing(source.beside(scheme)) as target:
        writing.write(run, source, target, decisions, request.treatment)
        size = files.size_bytes(target)
        if size >= size_before and not allow_noop:
            raise NoGain(model, f"the result would take {size} bytes, the input takes {size_before}")
        if gauge is not None:
            gauge.measure(target)
            if max_drop is not None:
                gated = gate.drop(search.before, gauge.evaluate(gauge.load(target), "validation"))
    run.put("parameters", roles.count_parameters(source), method="values in float tensors, running statistics apart")
    run.put("file_bytes", size, "B")
    run.put("compression_ratio", size_before / size, "1", method="bytes of the input over bytes of the output")
    _put_coverage(run, report)
    other = size_before - sum(decision.info.nbytes for decision in decisions)
    if other > size_before * NOTABLE_REST:
        run.note(f"{other / size_before:.0%} of the input is not weights (optimizer state, for example) and was copied")
    if gauge is not None:
        gauge.report()
    if max_drop is None or gauge is None:
        return 0
    run.put("gate_drop", gated, method=f"{gate.unit(search.before)} lost on the validation split")
    if gated <= max_drop:
        return 0
    missed = f"the drop is {gated:.3g} {gate.unit(search.before)}, not within {max_drop:g}; the nearest was saved"
    run.note(missed)
    run.say(f"Gate missed: {missed}")
    return MISSED


def _the_one(int8: bool, int4: bool, scheme: str | None) -> str:
    """The scheme that the options name; click.UsageError for none and for several."""
    named = {name for name, given in (("int8", int8), ("int4", int4), (scheme, scheme)) if given and name}
    if not named:
        raise click.UsageError("say how to quantize: --int8, --int4 or --scheme NAME")
    if len(named) > 1:
        raise click.UsageError(f"{' and '.join(sorted(named))} are two schemes; choose one of --int8, --int4, --scheme")
    return named.pop()


def _open(model: Path, trust_pickle: bool) -> ModelFile:
    """The model file, unless its weights are quantized already."""
    from computekit.models import compressed, open_model

    from . import huggingface

    source = open_model(model, trust_pickle=trust_pickle)
    present = compressed.find(source.tensors)
    if present:
        example = f"{len(present)} weights, e.g. {next(iter(present))}"
        raise FileProblem(model, f"is quantized already ({example})", "computekit dequantize gives back floats")
    huggingface.check_plain(source)
    return source


def _search(run: computekit.StepRun, search: Search, sensitivity: bool, max_drop: float | None) -> list[Decision]:
    """Measure what was asked for, put it into the record, and return what to quantize."""
    from . import gate

    ranked = search.sensitivities() if sensitivity else None
    if ranked is not None:
        run.details["sensitivity"] = [
            {"name": s.decision.info.name, "drop": s.drop, "loss_increase": s.loss_increase} for s in ranked
        ]
        run.show(gate.table(ranked, gate.unit(search.before)))
    decisions = search.decisions if max_drop is None else search.within(max_drop, ranked)
    if search.tried:
        run.details["gate"] = search.tried
        left_out = [d.info.name for d in decisions if d.kept == gate.GATED]
        run.say(f"gate: {len(left_out)} weights left out {' '.join(left_out[:5])}".rstrip())
    return decisions


def _put_coverage(run: computekit.StepRun, report: Coverage) -> None:
    run.put("coverage", report.share, "1", method="bytes of the tensors that were quantized over bytes of all")
    run.details["coverage"] = report.rows()
    run.details["tensors"] = report.tensors()
    run.show(report.table())
