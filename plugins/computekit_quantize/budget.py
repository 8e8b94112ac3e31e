"""``--max-bytes``: the best model in so many bytes.

All weights start with what was asked for, and climb their `ladders` in the order of harm taken away for a byte, as long
as the bytes last: finer groups, 8 bits in place of 4, nothing at all. The harm of a treatment is the divergence of the
outputs that its rounding errors cause (see `fisher`); without data, the errors' squares over those of the weight.
Nothing is tried out: how the result compares with the original is measured once, when it is written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

import computekit
from computekit import FileProblem, files

from . import ladders
from .ladders import Option
from .plan import Decision, Treatment

if TYPE_CHECKING:
    import torch

    from computekit.models import ModelFile

    from .fisher import Information
    from .flow import Job

KEPT = "left as it is: there is room"

_SAMPLES = 32  # on which weights are ranked
_PER_TENSOR = 512  # most that a file's own structure takes for one more tensor, with what metadata says of it


def fill(run: computekit.StepRun, job: Job, source: ModelFile, decisions: list[Decision]) -> list[Decision]:
    """The decisions with milder treatments, so that the output takes no more than --max-bytes.

    Raises:
        FileProblem: what was asked for takes more already, or the input takes no more.
        ComputekitError: data is given, and the model cannot run on it.
    """
    assert job.goal.max_bytes is not None
    before = files.size_bytes(job.model)
    room = job.goal.max_bytes.of(before)
    if room >= before:
        raise FileProblem(job.model, f"takes {before} bytes, no more than --max-bytes allows", "nothing is to be done")
    weights = [decision for decision in decisions if decision.quantized and decision.treatment.scheme.bits < 16]
    informed = _information(run, job, source, weights)
    found = []
    with run.progress(len(weights), "harm of each weight", "weight") as bar:
        for decision in weights:
            found.append((decision, _options(source, decision, informed)))
            bar.update()
    extra = sum(_cost(decision, decision.treatment) for decision in weights)
    left = room - before + sum(decision.info.nbytes for decision in weights) - extra
    left += sum(decision.saved for decision in decisions if decision.quantized and decision not in weights)
    if left < 0:
        problem = f"takes {room - left} bytes as asked for, and --max-bytes allows {room}"
        raise FileProblem(job.model, problem, "ask for fewer bits, larger groups or --scales bf16, or allow more")
    chosen = _climb(found, left)
    run.details["budget"] = {
        "bytes": room,
        "ranked_by": f"Fisher information of {_SAMPLES} samples" if informed else "relative squared error of weights",
        "harm": {decision.info.name: options[0].harm for decision, options in found},
    }
    run.say(f"--max-bytes: {room} allowed; {_told(chosen)}")
    return [_treated(decision, chosen[decision]) if decision in chosen else decision for decision in decisions]


def _climb(found: list[tuple[Decision, list[Option]]], left: float) -> dict[Decision, Treatment | None]:
    """Steps up the ladders in their order, each that there is still room for."""
    at = {decision: options[0] for decision, options in found}
    for step in ladders.steps(found):
        cost = step.after.cost - at[step.decision].cost
        if cost <= left:
            left -= cost
            at[step.decision] = step.after
    return {decision: option.treatment for decision, option in at.items()}


def _information(
    run: computekit.StepRun, job: Job, source: ModelFile, weights: list[Decision]
) -> Mapping[str, Information]:
    """What `fisher` finds, by the names of the weights in the file; empty without data."""
    if job.calibration.data is None and job.goal.data is None:
        return {}
    from . import calibration, fisher, samples
    from .factors import parameters_by_file_name

    data = job.calibration.load(job.goal.data, "--max-bytes", job.model, job.goal.window)
    module, _ = samples.load(job, source.path)
    parameters = parameters_by_file_name(module.to(run.device), source)
    wanted = {d.info.name: parameters[d.info.name] for d in weights if d.info.name in parameters}
    inputs = calibration.samples(data, _SAMPLES)
    with run.progress(len(inputs), "ranking weights", "sample") as bar:
        return fisher.measure(module, calibration.batches(inputs, module, 1), wanted, data.task, bar.update)


def _options(source: ModelFile, decision: Decision, informed: Mapping[str, Information]) -> list[Option]:
    """The ladder of one weight, what was asked for first."""
    weight = source.load(decision.info.name)
    finer = decision.treatment.finer
    same_layers = [t for t in decision.treatment.milder if t.activations == decision.treatment.activations]
    options = []
    for treatment in (decision.treatment, *([finer] if finer else ()), *same_layers):
        error = treatment.round(weight, decision.info.name).dequantize() - weight
        harm = _harm(error, weight, informed.get(decision.info.name) if informed else None, bool(informed))
        options.append(Option(treatment, _cost(decision, treatment), harm))
    return [*options, Option(None, _cost(decision, None), 0.0)]


def _harm(error: torch.Tensor, weight: torch.Tensor, information: Information | None, informed: bool) -> float:
    if informed:
        return information.harm(error) if information else 0.0
    return float(error.double().square().sum() / weight.double().square().sum().clamp_min(1e-300))


def _cost(decision: Decision, treatment: Treatment | None) -> float:
    """Bytes in the file, with what the tensors beside the values cost."""
    chosen = _treated(decision, treatment)
    if treatment is None:
        return chosen.bytes_after
    tensors = 2 if treatment.scheme.bits == 8 else 3
    return chosen.bytes_after + _PER_TENSOR * (tensors - 1 + treatment.scheme.zero_points)


def _treated(decision: Decision, treatment: Treatment | None) -> Decision:
    return decision.keep(KEPT) if treatment is None else decision.treat(treatment)


def _told(chosen: Mapping[Decision, Treatment | None]) -> str:
    """How many weights, and values in them, get which treatment."""
    counts: Counter[str] = Counter()
    values: Counter[str] = Counter()
    for decision, treatment in chosen.items():
        word = decision.treat(treatment).grid if treatment else "as it was"
        counts[word] += 1
        values[word] += decision.info.numel
    total = sum(values.values())
    return ", ".join(f"{word}: {n} weights ({values[word] / total:.0%})" for word, n in counts.most_common())
