"""``computekit quantize``: the command line, and the steps from a plan to a file and its record."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import computekit
from computekit import ComputekitError, FileProblem, options

if TYPE_CHECKING:
    from computekit.models import ModelFile

    from .plan import Decision, Request

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
@click.option("--int8", "scheme", flag_value="int8", help="8-bit integers, one scale per output channel.")
@click.option("--int4", "scheme", flag_value="int4", help="4-bit integers, a scale per group of values.")
@click.option("--scheme", "scheme", metavar="NAME", help="A scheme by name; plugins add more.")
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
@options.batch_size(256)
@options.arch()
@options.trust_pickle
@options.step
def quantize(
    run: computekit.StepRun,
    model: Path,
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
) -> None:
    """Store the weights of a model file in fewer bits: a file in, a smaller file of the same kind out.

    Linear, convolution and embedding weights become integers with a scale per output channel, held as plain tensors
    that torch.load(weights_only=True) and safetensors open anywhere. No code is needed: what each tensor is follows
    from its name, shape and neighbours, and everything else passes through untouched. computekit.load_into(module,
    FILE) gives a runnable module, computekit dequantize a file of floats.

    \b
    Example:
      computekit quantize --int8 model.pt
      computekit quantize --int8 model.pt --data digits --exclude 'head.*' -o small.pt
    """
    if scheme is None:
        raise click.UsageError("say how to quantize: --int8, --int4 or --scheme NAME")
    from computekit import files
    from computekit.models import ArchRef, compressed, open_model, roles

    from . import coverage, huggingface, metric, plan, schemes

    how = schemes.get(scheme)
    group = group_size or how.default_group
    if activations == "dynamic" and (how.bits != 8 or group is not None):
        raise click.UsageError("--activations dynamic needs 8-bit weights with one scale per row: --int8")
    source = open_model(run.input(model), trust_pickle=trust_pickle)
    present = compressed.find(source.tensors)
    if present:
        example = f"{len(present)} weights, e.g. {next(iter(present))}"
        raise FileProblem(model, f"is quantized already ({example})", "computekit dequantize gives back floats")
    huggingface.check_plain(source)
    request = plan.Request(how, group, activations, include, exclude)
    decisions = plan.make(source, request)
    report = coverage.Coverage(decisions)
    if report.share < MIN_COVERAGE and not allow_noop:
        raise NoGain(model, f"only {report.share:.1%} of the bytes can be quantized ({report.reasons()})")
    size_before = files.size_bytes(model)
    gauge = None
    if data is not None:
        arch_ref = ArchRef(arch, arch_args or {}) if arch else None
        gauge = metric.Gauge(run, computekit.load_data(data), arch_ref, batch_size, trust_pickle)
        gauge.measure(model)
    with run.writing(source.beside(scheme)) as target:
        _write(run, source, target, decisions, request)
        size = files.size_bytes(target)
        if size >= size_before and not allow_noop:
            raise NoGain(model, f"the result would take {size} bytes, the input takes {size_before}")
        if gauge is not None:
            gauge.measure(target)
    run.put("parameters", roles.count_parameters(source), method="values in float tensors, running statistics apart")
    run.put("file_bytes", size, "B")
    run.put("compression_ratio", size_before / size, "1", method="bytes of the input over bytes of the output")
    run.put("coverage", report.share, "1", method="bytes of the tensors that were quantized over bytes of all")
    other = size_before - sum(decision.info.nbytes for decision in decisions)
    if other > size_before * NOTABLE_REST:
        run.note(f"{other / size_before:.0%} of the input is not weights (optimizer state, for example) and was copied")
    run.details["coverage"] = report.rows()
    run.details["tensors"] = report.tensors(scheme)
    run.show(report.table())
    if gauge is not None:
        gauge.report()


def _write(
    run: computekit.StepRun, source: ModelFile, target: Path, decisions: list[Decision], request: Request
) -> None:
    """Stream every tensor of ``source`` to ``target``, quantizing those that the plan chose."""
    from computekit.models import compressed, rewrite

    from . import huggingface

    scheme, group = request.scheme, request.group
    metadata = {**source.metadata, "compression": {"scheme": scheme.name, "activations": request.activations}}
    if huggingface.is_folder(source):
        metadata["quantization_config"] = huggingface.quantization_config(decisions, request)
    by_name = {name: decision for decision in decisions for name in decision.names}
    with one_thread(), run.progress(len(decisions), "quantizing", "tensor") as bar:

        def transform(info: Any, load: Any) -> list[tuple[str, Any]] | None:
            bar.update()
            if not by_name[info.name].quantized:
                return None
            return scheme.quantize(load(), scheme.bits, group, info.name).store(info.name)

        try:
            rewrite(source, target, transform, metadata)
        except compressed.NonFinite as error:
            raise FileProblem(
                source.path, str(error), f"repair it, or leave it out with --exclude '{error.name}'"
            ) from error


@contextmanager
def one_thread() -> Iterator[None]:
    """Keep torch to one thread: the pieces that `compressed.quantize` works on stay in the cache and take microseconds,
    less than it takes to wake the other threads, which would burn every core while they wait."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
