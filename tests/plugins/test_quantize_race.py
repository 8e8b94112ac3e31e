"""The race of --backend auto: what is timed, what is judged, what is kept; and programs that are made milder."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import computekit
from computekit.cli import main
from computekit_quantize import milder, race, rounds
from computekit_quantize.clock import Deadline
from computekit_quantize.milder import Layer


def runner(name: str, speed: float, size: int, lost: str = "") -> race.Runner:
    return race.Runner(name, bytes=size, ratios=[speed], cosine=speed / 10, lost=lost)


def test_the_fastest_that_is_near_enough_is_kept() -> None:
    def field() -> list[race.Runner]:
        return [runner("a", 2.0, 9), runner("b", 3.0, 10), runner("c", 4.0, 8, "cosine 0.9"), runner("d", 1.0, 5)]

    best = race._choose(runners := field(), small=False)
    assert best.name == "b"
    assert [each.lost for each in runners] == ["slower than b", "", "cosine 0.9", "slower than b"]
    assert race._choose(field(), small=True).name == "d"
    assert race._choose([runner("e", 2.0, 9, "far"), runner("f", 3.0, 9, "far")], small=False).name == "f"


def test_where_no_candidate_is_left_each_has_its_reason(poisoned: Path) -> None:
    without = [word for name in ("compile", "onnx", "openvino") for word in ("--race-without", name)]
    words = ["--backend", "auto", "--int8", "--activations", "static", *without, "model.pt", "-o", "out.pt"]
    result = CliRunner().invoke(main, ["quantize", *words, "--arch", "poisoned:build", "--input-shape", "1,8,8"])
    assert result.exit_code == 1
    assert "no candidate of --backend auto is left (torch int8 static needs data to calibrate on" in result.stderr
    assert not Path("out.pt").exists()


class Clock:
    """Time that passes only in models, and for each as it says."""

    def __init__(self) -> None:
        self.now = 0.0

    def model(self, seconds: Callable[[], float]) -> nn.Module:
        clock = self

        class Taking(nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                clock.now += seconds()
                return x

        return Taking()


class Step:
    device = torch.device("cpu")

    def progress(self, *_: object) -> Step:
        return self

    def __enter__(self) -> Step:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def update(self) -> None:
        pass


def raced(times: dict[str, Callable[[], float]]) -> list[rounds.Timed]:
    clock = Clock()
    models = [rounds.Timed(name, clock.model(seconds)) for name, seconds in times.items()]
    turns = rounds.Rounds(Step(), models[0], torch.zeros(1))  # type: ignore[arg-type]
    turns._now = lambda: clock.now
    turns.all_of(models, 0)
    turns.until_apart(models[1:], 60)
    return models


@pytest.mark.parametrize("seed", range(5))
def test_fifteen_percent_are_told_apart_in_noise(seed: int) -> None:
    """Times vary by a factor of e^+-0.3; only those two that may be the fastest are called more often."""
    chance = torch.Generator().manual_seed(seed)

    def noisy(seconds: float) -> Callable[[], float]:
        return lambda: seconds * math.exp(0.3 * float(torch.randn(1, generator=chance)))

    models = raced({"first": noisy(4), "far": noisy(3), "second": noisy(1.15), "best": noisy(1)})
    assert rounds.fastest(models[1:]).name == "best"
    count = {model.name: len(model.seconds) for model in models}
    assert count["far"] < count["second"] == count["best"] <= count["first"]


def test_rounds_end_when_it_is_clear_who_is_fastest_or_that_it_does_not_matter() -> None:
    models = raced({"first": lambda: 3.0, "slow": lambda: 2.0, "a": lambda: 1.0, "b": lambda: 1.01})
    assert {len(model.seconds) for model in models} <= {rounds.MIN_ROUNDS, rounds.MIN_ROUNDS + 1}
    assert models[2].speed == 3.0
    assert models[2].speedup is not None
    assert models[2].speedup.interval == (3.0, 3.0)


def test_a_model_that_joins_late_is_timed_as_often_as_the_others_at_least() -> None:
    clock = Clock()
    first, early, late = (rounds.Timed(str(t), clock.model(lambda t=t: t)) for t in (3.0, 2.0, 1.0))  # type: ignore[misc]
    turns = rounds.Rounds(Step(), first, torch.zeros(1))  # type: ignore[arg-type]
    turns._now = lambda: clock.now
    turns.all_of([first, early], 0)
    turns.until_apart([early, late], 0)
    assert len(late.seconds) >= rounds.MIN_ROUNDS
    assert late.speed == 3.0


@given(st.lists(st.floats(0, 10), min_size=1, max_size=30), st.floats(0.01, 0.99))
def test_as_few_layers_as_it_takes_are_left_in_floats_where_harms_add_up(harms: list[float], share: float) -> None:
    layers = [Layer(str(number), harm) for number, harm in enumerate(sorted(harms, reverse=True))]
    drop = math.fsum(harms)
    bound = share * drop
    attempts = []

    def attempt(floats: tuple[str, ...]) -> tuple[int, float]:
        attempts.append(len(floats))
        return len(floats), math.fsum(layer.harm for layer in layers[len(floats) :])

    found, tried = milder.fewest(layers, drop, bound, Deadline(None), attempt)
    least = next(count for count in range(1, len(layers) + 1) if attempt_drop(layers, count) <= bound)
    assert [each["floats"] for each in tried] == attempts
    assert len(attempts) <= milder.ATTEMPTS
    assert found is not None
    assert attempt_drop(layers, found) <= bound or drop == 0
    assert found - least <= max(0, len(layers) // 2 ** (milder.ATTEMPTS - 2))


def attempt_drop(layers: list[Layer], count: int) -> float:
    return math.fsum(layer.harm for layer in layers[count:])


def test_where_nothing_is_enough_the_nearest_is_returned_and_time_is_kept() -> None:
    layers = [Layer(str(number), 1.0) for number in range(8)]
    found, tried = milder.fewest(layers, 9.0, 1.0, Deadline(None), lambda floats: (len(floats), 9.0 - len(floats) / 8))
    assert found == 8
    assert tried[-1] == {"floats": 8, "drop": 8.0}
    assert milder.fewest(layers, 9.0, 1.0, Deadline(1e-9), lambda floats: (0, 0.0)) == (None, [])
    assert milder.fewest(layers, 9.0, 1.0, Deadline(None), lambda floats: (0, 10.0))[0] is None


ARCHITECTURE = """
from torch import nn

def build():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.Linear(64, 10))
"""


@pytest.fixture
def poisoned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A least-squares classifier of digits, one layer of which no integers can hold: huge weights on an unlit pixel."""
    pytest.importorskip("sklearn")
    from computekit.models import ArchRef, save_module

    (tmp_path / "poisoned.py").write_text(ARCHITECTURE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    train = computekit.load_data("digits").train
    x = train.inputs.flatten(1).double()
    y = nn.functional.one_hot(train.targets, 10).double()
    arch = ArchRef("poisoned:build", {})
    module = computekit.models.build(arch)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
        module[1].weight.copy_(torch.eye(64))  # type: ignore[index]
        solution = torch.linalg.solve(x.T @ x + 0.1 * torch.eye(64, dtype=torch.double), x.T @ y)
        module[2].weight.copy_(solution.T)  # type: ignore[index]
        module[1].weight[:, int((x.abs().amax(0) == 0).nonzero()[0])] = 1e4  # type: ignore[index]
    save_module(module, "model.pt", arch)
    return tmp_path / "model.pt"


def quantize(*words: str, code: int = 0) -> dict[str, object]:
    result = CliRunner().invoke(main, ["quantize", *words, "--arch", "poisoned:build", "--threads", "1", "--json"])
    assert result.exit_code == code, result.stderr
    record: dict[str, object] = json.loads(result.stdout)
    return record


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "packages", "activations"),
    [("onnx", "onnxruntime", "dynamic"), ("onnx", "onnxruntime", "static"), ("openvino", "nncf", "static")],
)
def test_a_program_leaves_the_layer_in_floats_that_breaks_it(
    backend: str, packages: str, activations: str, poisoned: Path
) -> None:
    pytest.importorskip(packages)
    words = ["--int8", "--backend", backend, "--activations", activations, "--data", "digits", "--max-drop", "1"]
    record = quantize(*words, "model.pt", "-o", "out.pt")
    details = record["details"]
    assert isinstance(details, dict)
    assert details["floats"] == ["1"]
    assert details["milder"][0]["tried"][0]["floats"] == 1
    assert "the program computes in floats: 1" in record["notes"]  # type: ignore[operator]
    again = quantize(*words, "model.pt", "-o", "again.pt")
    assert again["details"]["floats"] == ["1"]  # type: ignore[index]
    assert Path("again.pt").read_bytes() != b""


@pytest.mark.slow
def test_the_race_makes_the_fastest_program_milder_where_it_loses_too_much(
    poisoned: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("nncf")
    without = [word for name in ("torch", "compile", "onnx") for word in ("--race-without", name)]
    words = ["--backend", "auto", "--int8", "--activations", "static", *without, "--race-seconds", "0.5"]
    record = quantize(*words, "--data", "digits", "--max-drop", "1", "model.pt", "-o", "out.pt")
    race_about = record["details"]["race"]  # type: ignore[index]
    kept = [row for row in race_about["candidates"][1:] if not row["lost"]]
    assert [row["name"].split(",")[0] for row in kept] == ["openvino int8 static"]
    assert kept[0]["name"].endswith(", 1 layer not")
    assert len(kept[0]["samples_s"]) >= rounds.MIN_ROUNDS
    assert any("more than 1" in row["lost"] for row in race_about["candidates"])
    assert race_about["gate"]["says"].startswith("drop: points of accuracy on the validation split, at most 1; cosine")
