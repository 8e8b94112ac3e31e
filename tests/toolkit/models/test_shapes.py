"""Shrinking a fresh module to the shapes of a pruned file."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from computekit.models.shapes import ShapesDoNotFit, shrink


def shapes(module: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}


def assert_becomes(large: nn.Module, small: nn.Module, inputs: torch.Tensor) -> None:
    """``large``, shrunk to the shapes of ``small`` and loaded from it, computes what ``small`` computes."""
    shrink(large, shapes(small))
    large.load_state_dict(small.state_dict())
    assert repr(large) == repr(small)
    with torch.no_grad():
        torch.testing.assert_close(large.eval()(inputs), small.eval()(inputs), rtol=0, atol=0)


def network(width: int, depthwise: int, grouped: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.PReLU(width),
        nn.Conv2d(width, width * depthwise, 3, padding=1, groups=width),
        nn.Conv2d(width * depthwise, 4 * grouped, 1, groups=4 if width * depthwise % 4 == 0 else 1),
        nn.GroupNorm(2, 4 * grouped),
        nn.ConvTranspose2d(4 * grouped, 2 * grouped, 2, stride=2, groups=2),
        nn.InstanceNorm2d(2 * grouped, affine=True),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(2 * grouped, 5),
        nn.LayerNorm(5),
    )


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 8), st.integers(1, 2), st.integers(1, 6))
def test_convolutional_network_takes_any_smaller_shape(width: int, depthwise: int, grouped: int) -> None:
    small = network(4 * width, depthwise, grouped)
    assert_becomes(network(32, depthwise, 6), small, torch.randn(2, 3, 8, 8))


def test_depthwise_convolution_with_one_channel_left() -> None:
    assert_becomes(nn.Conv2d(8, 8, 3, groups=8), nn.Conv2d(1, 1, 3, groups=1), torch.randn(1, 1, 5, 5))


def test_embedding_and_rms_norm() -> None:
    def text(vocabulary: int, width: int) -> nn.Module:
        return nn.Sequential(nn.Embedding(vocabulary, width), nn.RMSNorm(width), nn.Linear(width, 3))

    assert_becomes(text(50, 16), text(20, 12), torch.tensor([[1, 19]]))


def test_tied_weights_stay_tied_and_types_stay() -> None:
    class Tied(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.token = nn.Embedding(10, width)
            self.head = nn.Linear(width, 10, bias=False)
            self.head.weight = self.token.weight

    module = Tied(8).to(torch.bfloat16).requires_grad_(False)
    shrink(module, shapes(Tied(6)))
    assert module.head.weight is module.token.weight
    assert module.head.weight.dtype == torch.bfloat16 and not module.head.weight.requires_grad
    assert (module.head.in_features, module.token.embedding_dim) == (6, 6)


def test_parameter_held_by_the_module_itself() -> None:
    class Scale(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.gamma = nn.Parameter(torch.ones(width))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.gamma

    assert_becomes(Scale(8), Scale(5), torch.randn(2, 5))


def test_equal_shapes_change_nothing() -> None:
    module = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    before = copy.deepcopy(module.state_dict())
    weight = module[0].weight
    shrink(module, shapes(module))
    assert module[0].weight is weight
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())


@pytest.mark.parametrize(
    ("module", "found", "why"),
    [
        (nn.Linear(4, 3), {"weight": (5, 4)}, r"no part of the \[3, 4\] that was built"),
        (nn.Linear(4, 3), {"weight": (3, 4, 1)}, r"no part of the \[3, 4\] that was built"),
        (nn.GroupNorm(4, 8), {"weight": (6,), "bias": (6,)}, "4 groups do not divide it"),
        (nn.Conv2d(8, 8, 3, groups=4), {"weight": (6, 2, 3, 3)}, "do not divide into its groups"),
        (nn.Bilinear(4, 4, 4), {"weight": (3, 4, 4)}, "Bilinear cannot be made smaller"),
    ],
)
def test_what_cannot_be_a_pruned_module_is_refused(
    module: nn.Module, found: dict[str, tuple[int, ...]], why: str
) -> None:
    with pytest.raises(ShapesDoNotFit, match=why):
        shrink(module, found)
