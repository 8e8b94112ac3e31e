"""The original model in memory, in which layers get treatments for a while: what the written file would compute."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from .plan import Decision, Treatment

if TYPE_CHECKING:
    import torch
    from torch import nn

    from computekit.models import ModelFile
    from computekit.models.compressed import HalfWeight, QuantizedWeight


class Workbench:
    """A module whose weights can be treated and restored.

    ``module`` is the original on its device, ``decisions`` the plan whose quantized weights live in it. Rounded weights
    are kept: they take a quarter of the model in 8 bits for each treatment that was tried.
    """

    def __init__(self, module: nn.Module, source: ModelFile, decisions: list[Decision]) -> None:
        import torch

        from computekit.models.compressed_layers import places
        from computekit.models.modules import match_names

        self.module = module
        self.device = next((tensor.device for tensor in module.parameters()), torch.device("cpu"))
        names, _ = match_names(module.state_dict(), source)
        owners = places(module)
        self.places = {name: owners[key] for key, name in names.items() if key in owners}
        chosen = [d for d in decisions if d.quantized and d.treatment.scheme.bits < 16]
        self.quantized = [d for d in chosen if d.info.name in self.places]
        self._rounded: dict[tuple[str, Treatment], QuantizedWeight | HalfWeight] = {}

    def rounded(self, decision: Decision, treatment: Treatment) -> QuantizedWeight | HalfWeight:
        """The integers and scales that ``treatment`` gives the weight, on the CPU."""
        key = (decision.info.name, treatment.storage)
        if key not in self._rounded:
            owner, attribute = self.places[decision.info.name][0]
            weight = getattr(owner, attribute).detach().cpu()
            self._rounded[key] = treatment.round(weight, decision.info.name)
        return self._rounded[key]

    def error(self, decision: Decision, treatment: Treatment) -> float:
        """The squared error of rounding the weight."""
        owner, attribute = self.places[decision.info.name][0]
        weight = getattr(owner, attribute).detach().cpu()
        return float((self.rounded(decision, treatment).dequantize() - weight).double().square().sum())

    def relative_error(self, decision: Decision) -> float:
        """The squared error of the treatment that was asked for, over the squares of the weight's values."""
        owner, attribute = self.places[decision.info.name][0]
        square = float(getattr(owner, attribute).detach().double().square().sum())
        return self.error(decision, decision.treatment) / square if square else 0.0

    @contextmanager
    def treated(self, chosen: Mapping[Decision, Treatment]) -> Iterator[nn.Module]:
        """The module in which exactly the ``chosen`` weights have their treatments."""
        with ExitStack() as stack:
            for decision, treatment in chosen.items():
                stack.enter_context(self._layer(decision, treatment))
            yield self.module

    @contextmanager
    def _layer(self, decision: Decision, treatment: Treatment) -> Iterator[None]:
        """One weight and its layers treated; also when it ends by an error, they are as they were."""
        owner, attribute = self.places[decision.info.name][0]
        parameter = getattr(owner, attribute).data
        original = parameter.clone()
        parameter.copy_(self.rounded(decision, treatment).dequantize())
        try:
            with self.rounded_inputs(decision, treatment):
                yield
        finally:
            parameter.copy_(original)

    @contextmanager
    def rounded_inputs(self, decision: Decision, treatment: Treatment) -> Iterator[nn.Module]:
        """The module in which what goes into the layers of one weight is rounded as its treatment rounds it."""
        hook = self.rounding(decision, treatment)
        owners = [owner for owner, _ in self.places[decision.info.name] if self.in_integers(owner, treatment)]
        handles = [owner.register_forward_pre_hook(hook) for owner in owners]
        try:
            yield self.module
        finally:
            for handle in handles:
                handle.remove()

    def rounding(self, decision: Decision, treatment: Treatment) -> Callable[..., Any]:
        """A forward pre-hook that rounds the input of a layer as its treatment does."""
        from computekit.models import int8_linear

        grid = decision.grids.input if treatment.activations == "static" and decision.grids else None

        def hook(layer: nn.Module, args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
            if grid is not None:
                return (grid.dequantize(grid.quantize(args[0]), args[0].dtype), *args[1:])
            return (int8_linear.rounded(args[0]), *args[1:])

        return hook

    def in_integers(self, owner: nn.Module, treatment: Treatment) -> bool:
        """Whether a layer would compute in integers with this treatment."""
        from torch import nn

        return treatment.activations == "static" or (
            treatment.activations == "dynamic" and type(owner).forward is nn.Linear.forward
        )

    @contextmanager
    def swapping(
        self, decision: Decision, treatments: Sequence[Treatment]
    ) -> Iterator[Callable[[Treatment | None], None]]:
        """A function that gives the weight's layers one of ``treatments``, as in the file, or makes them floats."""
        places = self.places[decision.info.name]
        states: dict[Treatment | None, list[Snapshot]] = {None: [Snapshot(owner) for owner, _ in places]}

        def swap(treatment: Treatment | None) -> None:
            for snapshot in states[treatment]:
                snapshot.put_back()

        try:
            for treatment in treatments:
                swap(None)
                self._install(decision, treatment)
                states[treatment] = [Snapshot(owner) for owner, _ in places]
            yield swap
        finally:
            swap(None)

    def _install(self, decision: Decision, treatment: Treatment) -> None:
        """Make the layers of a weight what they are when the file is loaded."""
        from computekit.models.compressed import HalfWeight
        from computekit.models.compressed_layers import compress_parameter

        places, weight = self.places[decision.info.name], self.rounded(decision, treatment)
        if isinstance(weight, HalfWeight):  # becomes the type of the module again
            return
        compress_parameter(places, weight, treatment.activations)
        if treatment.activations == "static" and decision.grids is not None:
            from computekit.models.int8_program import attach

            for owner, _ in places:
                for name, tensor in decision.grids.store(""):
                    owner.register_buffer(name, tensor)
                attach(owner)


class Snapshot:
    """The class, parameters, buffers and attributes of one module at one time.

    Dictionaries are put back as the same objects: the handles of hooks know them.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module, self.kind, self.attributes = module, type(module), dict(vars(module))
        self.contents = {name: value.copy() for name, value in self.attributes.items() if isinstance(value, dict)}

    def put_back(self) -> None:
        """Make the module what it was."""
        self.module.__class__ = self.kind
        vars(self.module).clear()
        vars(self.module).update(self.attributes)
        for name, content in self.contents.items():
            self.attributes[name].clear()
            self.attributes[name].update(content)
