"""--max-bytes: the file takes no more, and the room goes where it does most good."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result
from safetensors.torch import save_file
from torch import nn

import computekit
from computekit.cli import main
from computekit.models import compressed, open_model
from computekit_quantize import fisher, ladders
from computekit_quantize.goal import Room, RoomType
from computekit_quantize.ladders import Option

CODE = """
from torch import nn

def build():
    layers = nn.Linear(64, 200), nn.Linear(200, 130), nn.Linear(130, 10)
    return nn.Sequential(nn.Flatten(), layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2])
"""
SHAPES = [(200, 64), (130, 200), (10, 130)]


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three layers of odd sizes; nothing the second one gives reaches the output, whose weights for it are 0."""
    (tmp_path / "odd_sizes.py").write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    module = network()
    torch.save(module.state_dict(), tmp_path / "m.pt")
    return tmp_path / "m.pt"


def network() -> nn.Sequential:
    torch.manual_seed(0)
    (one, two), three = SHAPES[0], SHAPES[2]
    layers = nn.Linear(two, one), nn.Linear(one, SHAPES[1][0]), nn.Linear(*reversed(three))
    return nn.Sequential(nn.Flatten(), layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2]).eval()


def quantize(model: Path, *words: str) -> Result:
    return CliRunner().invoke(main, ["quantize", *words, str(model), "-o", "q.pt", "--json"])


def bits(path: str | Path = "q.pt") -> dict[str, int]:
    return {name: layout.bits for name, layout in compressed.find(open_model(Path(path)).tensors).items()}


@pytest.mark.parametrize("share", ["0.2", "0.25", "0.3", "0.5", "0.9"])
@pytest.mark.parametrize("words", [("--int4",), ("--scheme", "int4-asym", "--scales", "bf16")])
def test_the_file_takes_no_more_than_allowed_and_nearly_all_of_it(
    model: Path, share: str, words: tuple[str, ...]
) -> None:
    result = quantize(model, *words, "--max-bytes", share)
    assert result.exit_code == 0, result.output
    size, allowed = Path("q.pt").stat().st_size, float(share) * model.stat().st_size
    assert size <= allowed
    largest_step = 200 * 130 * 4
    assert size > allowed - largest_step
    computekit.load_into(network(), "q.pt")


def test_more_room_is_never_worse(model: Path) -> None:
    errors = []
    original = network().state_dict()
    for share in ("0.2", "0.24", "0.3", "0.5"):
        assert quantize(model, "--int4", "--max-bytes", share).exit_code == 0
        module = computekit.load_into(network(), "q.pt")
        weights = {f"{number}.weight": module[number].weight for number in (1, 3, 5)}
        errors.append(sum((t - original[n]).square().sum() / original[n].square().sum() for n, t in weights.items()))
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < errors[0] / 4


def test_a_size_that_cannot_be_met_is_refused_and_nothing_is_written(model: Path) -> None:
    result = quantize(model, "--int4", "--max-bytes", "0.1")
    assert result.exit_code == 1
    assert "m.pt: takes " in result.stderr
    assert "and --max-bytes allows" in result.stderr
    assert quantize(model, "--int4", "--max-bytes", "1GB").exit_code == 1
    assert not Path("q.pt").exists()


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("--max-bytes 0.2 --max-drop 1 --data digits --int4", "choose one"),
        ("--max-bytes 0.2 --scheme bf16", "--max-bytes gives layers milder treatments"),
        ("--max-bytes 0.2 --backend auto", "--max-bytes chooses for one backend"),
        ("--max-bytes 0 --int4", "neither a size"),
        ("--max-bytes 12parsecs --int4", "neither a size"),
        ("--max-bytes nan --int4", "neither a size"),
        ("--max-bytes -1 --int4", "neither a size"),
    ],
)
def test_what_makes_no_sense_is_a_usage_error(model: Path, words: str, problem: str) -> None:
    result = quantize(model, *words.split())
    assert result.exit_code == 2, result.output
    assert problem in result.stderr


@pytest.mark.parametrize(
    ("text", "size"),
    [("110MB", 110_000_000), ("1.5 kB", 1500), ("2MiB", 2 << 20), ("2048", 2048), (".5GB", 500_000_000), ("7b", 7)],
)
def test_sizes_are_read(text: str, size: int) -> None:
    assert RoomType().convert(text, None, None).of(1) == size


def test_a_share_is_of_the_input() -> None:
    assert RoomType().convert("0.2", None, None) == Room(None, 0.2)
    assert Room(None, 0.2).of(1000) == 200


def test_data_shows_which_layer_matters(model: Path) -> None:
    """The last layer reads only 30 of the second one's outputs: rounding the others does no harm, and gets no bytes."""
    pytest.importorskip("sklearn")
    module = network()
    with torch.no_grad():
        module[3].weight[:, :] *= 3  # so that errors of its weights alone would be as large as any
        module[5].weight[:, 30:] = 0
        module[1].weight[:190] = 0
        module[1].bias[:190] = -1
    torch.save(module.state_dict(), model)
    room = ("--int4", "--max-bytes", "0.26", "--arch", "odd_sizes:build")
    assert quantize(model, *room, "--calibration", "digits").exit_code == 0
    record = json.loads(quantize(model, *room, "--calibration", "digits").stdout)
    assert record["details"]["budget"]["ranked_by"] == "Fisher information of 32 samples"
    harm = record["details"]["budget"]["harm"]
    assert harm["3.weight"] < harm["5.weight"]
    assert bits().get("5.weight") != 4


def test_the_same_bytes_each_time(model: Path) -> None:
    pytest.importorskip("sklearn")
    words = ("--scheme", "gptq", "--max-bytes", "0.25", "--arch", "odd_sizes:build", "--calibration", "digits")
    contents = []
    for _ in range(2):
        assert quantize(model, *words).exit_code == 0
        contents.append(Path("q.pt").read_bytes())
    assert contents[0] == contents[1]


def test_steps_that_no_longer_fit_leave_room_for_smaller_ones() -> None:
    from computekit_quantize.budget import _climb

    big, small, free = (Decisions(name) for name in ("big", "small", "free"))
    found: Any = [
        (big, [Option("4", 10, 9.0), Option("8", 30, 0.0)]),
        (small, [Option("4", 10, 0.5), Option("8", 12, 0.1), Option(None, 40, 0.0)]),
        (free, [Option("4", 10, 1.0), Option("4m", 10, 0.9)]),
    ]
    assert _climb(found, 5) == {big: "4", small: "8", free: "4m"}
    assert _climb(found, 22) == {big: "8", small: "8", free: "4m"}
    assert next(step.decision for step in ladders.steps(found)) == free


class Decisions(str):
    """Stands for a decision, which is told by its name."""


def test_information_is_the_curvature_of_the_divergence() -> None:
    """Small random changes of a weight: the divergence that was measured is the one that was foretold."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 5)).eval()
    inputs = torch.randn(400, 12) * torch.linspace(0.2, 2, 12)
    weight = module[0].weight
    found = fisher.measure(module, inputs.split(1), {"w": weight}, "classification", lambda: None)["w"]
    assert all(parameter.requires_grad and parameter.grad is None for parameter in module.parameters())
    before = module(inputs).log_softmax(1)
    foretold = measured = 0.0
    for _ in range(30):
        error = 0.02 * torch.randn_like(weight)
        with torch.no_grad():
            weight += error
            after = module(inputs).log_softmax(1)
            weight -= error
        foretold += found.harm(error)
        measured += float((before.exp() * (before - after)).sum(1).mean())
    assert foretold == pytest.approx(measured, rel=0.3)


def test_weights_that_reach_no_output_have_none() -> None:
    module = nn.ModuleDict({"used": nn.Linear(4, 3), "unused": nn.Linear(4, 3)})
    module.forward = lambda x: module["used"](x)  # type: ignore[method-assign]
    weights = {name: layer.weight for name, layer in module.items()}
    found = fisher.measure(module, [torch.randn(2, 4)], weights, "inputs", lambda: None)  # type: ignore[arg-type]
    assert set(found) == {"used"}


def test_code_without_gradients_is_said() -> None:
    class Detached(nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return super().forward(input).detach()

    module = Detached(4, 3)
    with pytest.raises(computekit.ComputekitError, match="gradients, and none go through"):
        fisher.measure(module, [torch.randn(2, 4)], {"w": module.weight}, "classification", lambda: None)


def test_safetensors_keep_within_the_size_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    save_file({f"layers.{i}.weight": torch.randn(31, 77) for i in range(40)}, "m.safetensors")
    words = ["quantize", "--int4", "--max-bytes", "0.3", "m.safetensors", "-o", "q.safetensors"]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, result.stderr
    size, before = Path("q.safetensors").stat().st_size, Path("m.safetensors").stat().st_size
    assert 0.2 * before < size <= 0.3 * before
    assert set(bits("q.safetensors").values()) == {4, 8}
