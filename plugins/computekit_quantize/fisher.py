"""What a small change of each weight does to the outputs of a model, for all weights from one backward pass per sample.

Near the original, the divergence of the outputs grows with the square of a change E of the weights: by E^T F E / 2,
where F is the Fisher information (Amari 1998, doi:10.1162/089976698300017746, section 3); for rounding errors, which
are hardly correlated with each other, its diagonal is what counts. F is the mean square of the gradients of
log p(y | x) for outputs y that the model itself would draw, so it takes no targets.

Of each weight's diagonal, sums over rows and over columns are kept, which tell the rest if it is a product of both, as
in Adafactor (Shazeer and Stern 2018, arXiv:1804.04235, section 3): memory is the model and the gradient of one weight.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from computekit import ComputekitError
from computekit.evaluation import forward

if TYPE_CHECKING:
    from torch import Tensor, nn

_SEED = 0


@dataclass
class Information:
    """Of one weight (out, ...): sums of the diagonal over all columns, ``rows`` (out,), and rows, ``columns``."""

    rows: Tensor
    columns: Tensor

    def harm(self, error: Tensor) -> float:
        """The divergence that ``error`` (out, ...) of the weight causes, per sample."""
        total = float(self.rows.sum())
        if not total:
            return 0.0
        square = error.flatten(1).float().square()
        return float(self.rows @ square @ self.columns) / total / 2


def measure(
    module: nn.Module,
    batches: Iterable[Tensor],
    weights: Mapping[str, nn.Parameter],
    task: str,
    progress: Callable[[], object],
) -> dict[str, Information]:
    """The information of each of ``weights`` by its name; one on which the outputs do not depend is not in the result.

    For the ``task`` "classification" or "language-modeling", y is a class for each row of logits. Outputs of any other
    kind are normalized (hidden states, after their mean over tokens), and count with their squared difference.

    Raises:
        ComputekitError: the model cannot take the data, or no gradient goes through it.
    """
    generator = torch.Generator().manual_seed(_SEED)
    found: dict[str, Information] = {}
    needed = {parameter: parameter.requires_grad for parameter in module.parameters()}
    training = module.training
    module.eval().requires_grad_(False)
    handles = [_watch(name, parameter, found) for name, parameter in weights.items()]
    count = 0
    try:
        for batch in batches:
            count += len(batch)
            with torch.enable_grad():
                loss = _of_own_outputs(forward(module, batch, "the model"), task, generator)
            if not loss.requires_grad:
                raise ComputekitError("--max-bytes ranks weights by gradients, and none go through this model's code")
            loss.backward()  # type: ignore[no-untyped-call]
            progress()
    finally:
        for handle in handles:
            handle.remove()
        for parameter, before in needed.items():
            parameter.requires_grad_(before)
        module.train(training)
    for information in found.values():
        information.rows /= count
        information.columns /= count
    return found


def _watch(name: str, parameter: nn.Parameter, found: dict[str, Information]) -> Any:
    def add(parameter: Tensor) -> None:
        assert parameter.grad is not None
        gradient = parameter.grad.flatten(1).float()
        parameter.grad = None
        rows, columns = (torch.linalg.vector_norm(gradient, dim=dim).square_().cpu() for dim in (1, 0))
        if name in found:
            found[name].rows += rows
            found[name].columns += columns
        else:
            found[name] = Information(rows, columns)

    parameter.requires_grad_(True)
    return parameter.register_post_accumulate_grad_hook(add)  # type: ignore[no-untyped-call]


def _of_own_outputs(output: Any, task: str, generator: torch.Generator) -> Tensor:
    """A number whose gradients, squared, have the information as their mean over the draws of ``generator``."""
    hidden = getattr(output, "last_hidden_state", None)
    output = output if hidden is None else hidden.mean(1)
    if hidden is None and task in ("classification", "language-modeling"):
        logits = output.float().flatten(0, -2)
        drawn = torch.multinomial(logits.detach().softmax(1).cpu(), 1, generator=generator).squeeze(1)
        return F.cross_entropy(logits, drawn.to(logits.device), reduction="sum")
    outputs = F.normalize(output.float().flatten(1), dim=1)
    signs = torch.randint(2, outputs.shape, generator=generator, dtype=torch.float32) * 2 - 1
    return (outputs * signs.to(outputs.device)).sum()
