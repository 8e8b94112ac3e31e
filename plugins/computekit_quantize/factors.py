"""Scales that were folded into the weights of a model, by the names of its file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import nn

    from computekit.models import ModelFile, TensorInfo


@dataclass
class Factors:
    """What each tensor of a file is multiplied by: an axis, and a factor for each index of it."""

    found: dict[str, list[tuple[int, torch.Tensor]]] = field(default_factory=dict)

    def add(self, name: str, axis: int, factor: torch.Tensor) -> None:
        """Multiply tensor ``name`` by ``factor`` along ``axis``, after what was added before."""
        self.found.setdefault(name, []).append((axis, factor))

    def write(self, source: ModelFile, target: Path) -> None:
        """Write ``source`` to ``target``, as a file of the same kind, with the factors applied."""
        from computekit.models import rewrite

        def transform(info: TensorInfo, load: Callable[[], torch.Tensor]) -> list[tuple[str, torch.Tensor]] | None:
            if info.name not in self.found:
                return None
            tensor = load()
            for axis, factor in self.found[info.name]:
                tensor.mul_(factor.reshape([-1 if i == axis else 1 for i in range(tensor.ndim)]))
            return [(info.name, tensor)]

        rewrite(source, target, transform, source.metadata)


def parameters_by_file_name(module: nn.Module, source: ModelFile) -> Mapping[str, nn.Parameter]:
    """The module's parameters by the names that the file gives them."""
    from computekit.models.modules import match_names

    names, _ = match_names(module.state_dict(), source)
    by_key = dict(module.named_parameters(remove_duplicate=False))
    return {name: by_key[key] for key, name in names.items() if key in by_key}
