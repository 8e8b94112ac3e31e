"""Calibration: samples are spread over the training split, observers see every input of a layer and nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from torch import nn

from computekit import ComputekitError
from computekit.cli import main
from computekit.datasets import Data, Split, from_arrays
from computekit_quantize import calibration
from computekit_quantize.moments import Moments, can_observe


def data(count: int = 60) -> Data:
    """Samples that are their own number, three classes."""
    numbers = torch.arange(float(count)).unsqueeze(1)
    made = from_arrays("numbers", numbers, torch.arange(count) % 3, "made here")
    return replace(made, train=Split(numbers, torch.zeros(count)))


def test_samples_are_spread_evenly_over_the_training_split() -> None:
    assert calibration.samples(data(), 4).flatten().tolist() == [0, 15, 30, 45]


def test_fewer_samples_than_asked_for_are_all_taken() -> None:
    assert len(calibration.samples(data(), 1000)) == 60


def test_observers_see_all_inputs_of_the_named_layers_in_the_type_of_the_model() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 5), nn.Linear(5, 1)).double().train()
    x = torch.randn(10, 3)
    seen: dict[str, list[torch.Tensor]] = {"0": [], "2": []}
    found = calibration.observe(
        module, calibration.batches(x, module, 4), ["0", "2"], lambda name, layer: seen[name].append
    )
    assert set(found) == {"0", "2"}
    torch.testing.assert_close(torch.cat(seen["0"]), x.double(), rtol=0, atol=0)
    with torch.no_grad():
        torch.testing.assert_close(torch.cat(seen["2"]), module[:2](x.double()), rtol=0, atol=0)
    assert module.training and not any(layer._forward_pre_hooks for layer in module)


def test_a_layer_that_never_runs_is_not_in_the_result() -> None:
    module = nn.Sequential(nn.Linear(3, 3))
    module.unused = nn.Linear(3, 3)
    module.forward = lambda x: module[0](x)  # type: ignore[method-assign]
    found = calibration.observe(module, [torch.ones(1, 3)], ["0", "unused"], lambda name, layer: Moments(layer))
    assert list(found) == ["0"]


def test_nan_in_activations_names_the_layer() -> None:
    module = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    with torch.no_grad():
        module[0].bias[0] = torch.nan
    with pytest.raises(ComputekitError, match="goes into layer '1'"):
        calibration.observe(module, [torch.ones(1, 3)], ["0", "1"], lambda name, layer: Moments(layer))
    assert not any(layer._forward_pre_hooks for layer in module)


def test_data_of_the_wrong_shape_is_said() -> None:
    with pytest.raises(ComputekitError, match="cannot take samples of shape 4"):
        calibration.observe(nn.Linear(3, 3), [torch.ones(1, 4)], [""], lambda name, layer: Moments(layer))


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Linear(6, 4, bias=False), (7, 3, 6)),
        (nn.Conv2d(3, 4, (3, 2), stride=2, padding=1, dilation=(1, 2), bias=False), (5, 3, 9, 8)),
        (nn.Conv2d(3, 4, 3, padding="same", padding_mode="reflect", bias=False), (5, 3, 6, 7)),
        (nn.Conv1d(3, 4, 5, stride=2, padding=2, bias=False), (5, 3, 20)),
    ],
)
def test_moments_are_of_the_vectors_that_the_weight_multiplies(layer: nn.Module, shape: tuple[int, ...]) -> None:
    """The sum of squared outputs is the trace of W S W^T, where S is the second moment."""
    torch.manual_seed(1)
    x = torch.randn(shape)
    moments = Moments(layer)
    for piece in x.split(2):
        moments(piece)
    weight = layer.weight.detach().flatten(1)
    squares = ((weight @ moments.second_moment) * weight).sum()
    output = layer(x)
    torch.testing.assert_close(squares, output.square().sum().detach(), rtol=1e-4, atol=1e-4)
    assert moments.count == output.numel() // 4


def test_grouped_convolutions_and_lookups_are_not_observed() -> None:
    assert not can_observe(nn.Conv2d(4, 4, 3, groups=4))
    assert not can_observe(nn.Embedding(4, 4))
    assert not can_observe(nn.ConvTranspose2d(4, 4, 3))


def test_calibration_data_for_a_scheme_that_looks_at_none_is_a_usage_error(tmp_path: Path) -> None:
    torch.save({"fc.weight": torch.randn(64, 64)}, tmp_path / "m.pt")
    result = CliRunner().invoke(main, ["quantize", "--int8", str(tmp_path / "m.pt"), "--calibration", "digits"])
    assert result.exit_code == 2
    assert "int8 looks at no data" in result.stderr
