"""Calibrated schemes: the layers of a model are observed on data, and their weights rounded to suit it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import computekit

from . import calibration
from .factors import Factors, parameters_by_file_name

if TYPE_CHECKING:
    import torch
    from torch import nn

    from computekit.models import ModelFile
    from computekit.models.compressed import HalfWeight, QuantizedWeight

    from .flow import Job
    from .moments import Moments
    from .plan import Decision
    from .schemes import Scheme
    from .stages import Stage

_TOKENS = 1024  # of a text that go through the model at a time
_SAMPLES = 32  # of anything else


def fit(
    run: computekit.StepRun, job: Job, source: ModelFile, decisions: list[Decision], folded: Path
) -> tuple[ModelFile, list[Decision]]:
    """The decisions with schemes that give what suits the data, and the float model that they are about.

    That is ``source``, or the file ``folded`` of the same kind, which computes the same, where scales were folded into
    its weights. Layers that are not observed (lookups, grouped convolutions, what never runs) are rounded without data;
    a note says which.

    Raises:
        ComputekitError: there is no code to run, it cannot take the data, or a weight holds NaN or infinity.
    """
    from computekit.models import open_model

    from . import samples

    scheme = job.request.treatment.scheme
    data = job.calibration.load(job.goal.data, scheme.name, job.model, job.goal.window)
    module, _ = samples.load(job, source.path)
    module.to(run.device)
    inputs = calibration.samples(data, job.calibration.samples)
    size = _SAMPLES if inputs.is_floating_point() else max(1, _TOKENS // inputs[0].numel())
    fitting = _Fitting(module, source, decisions)
    with run.progress(len(fitting.layers), f"calibrating {scheme.name}", "layer") as bar:
        fitting.go(list(calibration.batches(inputs, module, size)), bar.update)
    run.details["calibration"] = {"data": data.describe(), "samples": len(inputs)}
    if scheme.channel_scales is not None:
        nowhere = f"{scheme.name} found no place to fold its scales into: weights are rounded as they are"
        run.details["folded"] = fitting.folded
        run.note(f"scales folded in {len(fitting.folded)} places" if fitting.folded else nowhere)
    missing = Counter(d.role for d in decisions if d.quantized and d.info.name not in fitting.rounded)
    if missing:
        run.note("rounded without data: " + ", ".join(f"{n} {role} weights" for role, n in sorted(missing.items())))
    if fitting.folded:
        fitting.factors.write(source, folded)
        source = open_model(folded, trust_pickle=job.trust_pickle)
    return source, [fitting.bound(decision) for decision in decisions]


@dataclass
class _Fitting:
    """One pass over a module in stages. ``rounded`` are the results by the file's names of the weights."""

    module: nn.Module
    source: ModelFile
    decisions: list[Decision]
    rounded: dict[str, QuantizedWeight | HalfWeight] = field(default_factory=dict)
    folded: list[dict[str, object]] = field(default_factory=list)
    factors: Factors = field(default_factory=Factors)

    def __post_init__(self) -> None:
        from . import folding
        from .moments import can_observe

        self.shared = folding.shared_parameters(self.module)
        self.parameters = parameters_by_file_name(self.module, self.source)
        self.names = {id(parameter): name for name, parameter in self.parameters.items()}
        fitted = [d for d in self.decisions if d.quantized and d.treatment.scheme.needs_data]
        # a tied weight is a table of lookups too, of which the inputs of the layer say nothing; it gains all the same
        decided = {name: d for d in fitted for name in d.names}
        self.layers: dict[str, Decision] = {}
        for path, layer in self.module.named_modules():
            name = self.names.get(id(getattr(layer, "weight", None)))
            if can_observe(layer) and name in decided:
                self.layers[path] = decided[name]
        self.schemes: dict[Scheme, Scheme] = {}

    def go(self, batches: list[torch.Tensor], progress: Callable[[], object]) -> None:
        from . import stages
        from .moments import Moments

        self._round_others()
        for stage in stages.walk(self.module, batches, list(self.layers)):
            moments = stage.observe(lambda name, layer: Moments(layer))
            if any(self.layers[name].treatment.scheme.channel_scales for name in moments):
                self._fold(stage, moments)
            for name, seen in moments.items():
                self._round(name, seen)
                progress()

    def _round_others(self) -> None:
        """Round what needs no data before anything is observed, so that what does sees it as it will be."""
        fitted = {id(decision) for decision in self.layers.values()}
        for decision in self.decisions:
            parameter = self.parameters.get(decision.info.name)
            if decision.quantized and id(decision) not in fitted and parameter is not None:
                weight = parameter.detach()
                weight.copy_(decision.treatment.round(weight.cpu(), decision.info.name).dequantize())

    def _fold(self, stage: Stage, moments: Mapping[str, Moments]) -> None:
        from . import folding

        for fold in folding.find(stage, stage.names, self.shared):
            consumers = [stage.prefix + name for name in fold.consumers]
            treatment = self.layers[consumers[0]].treatment
            if any(self.layers[name].treatment != treatment for name in consumers):
                continue
            scale = treatment.scales([self._weight(name) for name in consumers], moments[consumers[0]])
            if scale is None or not folding.apply(stage.part, fold, scale):
                continue
            for name in consumers:
                moments[name].divide(scale)
                self.factors.add(self._name(self.module.get_submodule(name), "weight"), 1, scale)
            producer = stage.part.get_submodule(fold.producer)
            for attribute, _ in producer.named_parameters(recurse=False):
                self.factors.add(self._name(producer, attribute), 0, 1 / scale)
            self.folded.append({"from": stage.prefix + fold.producer, "into": consumers})

    def _weight(self, layer: str) -> torch.Tensor:
        weight: torch.Tensor = self.module.get_parameter(f"{layer}.weight" if layer else "weight").detach()
        return weight

    def _round(self, layer: str, moments: Moments) -> None:
        """Round the weight of one layer, in the module too, so that the stages after it see what it does."""
        decision = self.layers[layer]
        treatment, name = decision.treatment, decision.info.name
        weight = self._weight(layer)
        self.rounded[name] = treatment.fit(weight.cpu(), moments, name)
        weight.copy_(self.rounded[name].dequantize())

    def _name(self, module: nn.Module, attribute: str) -> str:
        return self.names[id(getattr(module, attribute))]

    def bound(self, decision: Decision) -> Decision:
        """The decision with a scheme that knows the results of this one."""
        if not decision.quantized:
            return decision
        scheme = decision.treatment.scheme
        if scheme not in self.schemes:

            def quantize(weight: torch.Tensor, bits: int, group: int | None, name: str) -> QuantizedWeight | HalfWeight:
                return self.rounded[name] if name in self.rounded else scheme.quantize(weight, bits, group, name)

            self.schemes[scheme] = replace(scheme, quantize=quantize)
        return decision.treat(replace(decision.treatment, scheme=self.schemes[scheme]))
