"""The files of programs: they replace nothing but the old program, go when it goes, and outlive a kill."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from torch import nn

import computekit
import computekit_quantize
from computekit import host
from computekit.cli import main
from computekit.models import ArchRef, program_files, save_module
from computekit.testing import make_model
from computekit_quantize import Backend, Export, programs


def quantize(*words: str, code: int = 0) -> str:
    result = CliRunner().invoke(main, ["quantize", *words])
    assert result.exit_code == code, result.stderr
    return result.stderr if code else result.stdout


class Scaled(nn.Module):
    def __init__(self, module: nn.Module, factor: float) -> None:
        super().__init__()
        self.module, self.factor = module, factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(self.module(x)) * self.factor


FACTOR = [2.0]
"""What the next export writes."""


def _load(source: computekit.ModelFile, build: Callable[[], nn.Module]) -> nn.Module:
    _, [path] = programs.find(source)
    return Scaled(build(), float(path.read_text()))


def _export(job: Export, stem: Path) -> dict[str, str]:
    stem.with_name(f"{stem.name}.factor").write_text(str(FACTOR[0]))
    return {}


def _breaks(source: computekit.ModelFile, build: Callable[[], nn.Module]) -> nn.Module:
    raise LookupError("no such driver\nand more")


class Failing(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise ValueError("the kernel failed")


@computekit.hookimpl(optionalhook=True)
def computekit_quantization_backends() -> list[Backend]:
    return [
        Backend("scaling", "a factor", _load, _export, endings=(".factor",)),
        Backend("undeclared", "does not say how its files are called", _load, _export),
        Backend("broken", "does not load", _breaks),
        Backend("failing", "does not run", lambda source, build: Failing()),
    ]


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    registry = host.Host.of(("quantize", computekit_quantize), ("mine", sys.modules[__name__]))
    monkeypatch.setattr(host, "current", lambda: registry)
    monkeypatch.chdir(tmp_path)
    FACTOR[0] = 2.0
    yield make_model(tmp_path / "model.pt")


SCALING = ("--int8", "--backend", "scaling", "model.pt", "-o", "out.pt")


def here() -> set[str]:
    return {path.name for path in Path().iterdir()} - {"out.pt.record.json"}


def factor() -> float:
    module, _, _ = computekit.load_module("out.pt")
    assert isinstance(module, Scaled)
    return module.factor


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda path: path.unlink(), "is run from out.factor, which is not beside it"),
        (lambda path: path.write_bytes(b"other"), "is run from out.factor, which is another file now"),
    ],
)
def test_a_missing_or_changed_program_is_one_line_that_says_what_to_do(
    model: Path, damage: Callable[[Path], object], problem: str
) -> None:
    quantize(*SCALING)
    damage(Path("out.factor"))
    advice = "put there the out.factor that was written with it, or quantize again; computekit dequantize needs none"
    with pytest.raises(computekit.FileProblem, match=f"{problem}; {advice}"):
        computekit.load_module("out.pt")
    freed = CliRunner().invoke(main, ["dequantize", "out.pt", "-o", "floats.pt"])
    assert freed.exit_code == 0, freed.stderr
    computekit.load_module("floats.pt")


def test_a_name_that_leaves_the_folder_is_refused(model: Path) -> None:
    arch = ArchRef("mlp", {"in_features": 64, "classes": 10})
    runtime = {"name": "scaling", "files": {"../model.pt": "0" * 64}}
    save_module(computekit.models.build(arch), "odd.pt", arch, compression={"runtime": runtime})
    with pytest.raises(computekit.FileProblem, match="the file is damaged"):
        computekit.load_module("odd.pt")
    assert program_files.belonging(Path("odd.pt")) == set()


def test_what_fails_leaves_nothing_behind(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(programs, "place", full)
    assert "the disk is full" in quantize(*SCALING, code=1)
    assert here() == {"model.pt"}


@pytest.mark.parametrize("backend", ["scaling", "undeclared"])
def test_a_file_that_is_not_the_old_program_is_never_replaced(backend: str, model: Path) -> None:
    Path("out.factor").write_text("somebody's")
    told = quantize("--int8", "--backend", backend, "model.pt", "-o", "out.pt", code=1)
    assert "out.factor: would be replaced, and is no part of out.pt; move it away, or give another --output" in told
    assert here() == {"model.pt", "out.factor"}
    assert Path("out.factor").read_text() == "somebody's"


def test_a_program_never_takes_the_place_of_the_model_file(model: Path) -> None:
    Path("out.factor").write_bytes(b"old")
    told = quantize("--int8", "--backend", "scaling", "model.pt", "-o", "out.factor", code=1)
    assert "out.factor: --backend scaling writes a file of this name" in told
    assert "out.pt" in told
    assert Path("out.factor").read_bytes() == b"old"
    assert here() == {"model.pt", "out.factor"}


def test_the_old_program_is_replaced_and_goes_when_the_new_file_has_none(model: Path) -> None:
    quantize(*SCALING)
    FACTOR[0] = 3.0
    quantize(*SCALING)
    assert factor() == 3.0
    quantize("--int8", "model.pt", "-o", "out.pt")
    assert here() == {"model.pt", "out.pt"}
    computekit.load_module("out.pt")


@pytest.mark.parametrize(
    "step",
    [
        ("convert", "model.pt", "out.pt"),
        ("dequantize", "int8.pt", "-o", "out.pt"),
        ("train", "--arch", "mlp", "--data", "digits", "--epochs", "1", "-o", "out.pt"),
        ("prune", "model.pt", "--ratio", "0.3", "-o", "out.pt"),
    ],
)
def test_the_program_goes_with_its_file_whatever_step_replaces_that(
    step: tuple[str, ...], model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quantize("--int8", "model.pt", "-o", "int8.pt")
    quantize(*SCALING)
    installed = host.Host.discover()
    monkeypatch.setattr(host, "current", lambda: installed)
    done = CliRunner().invoke(main, step)
    assert done.exit_code == 0, done.stderr
    assert {path.name for path in Path().iterdir() if path.suffix != ".json"} == {"model.pt", "int8.pt", "out.pt"}


def test_a_step_that_fails_leaves_the_old_file_and_its_program(model: Path) -> None:
    quantize(*SCALING)
    done = CliRunner().invoke(main, ["convert", "model.pt", "out.pt", "--part", "none.such"])
    assert done.exit_code != 0
    assert here() == {"model.pt", "out.pt", "out.factor"}


def test_a_copy_of_a_model_file_does_not_own_the_program(model: Path) -> None:
    quantize(*SCALING)
    shutil.copy("out.pt", "copy.pt")
    quantize("--int8", "model.pt", "-o", "copy.pt")
    assert factor() == 2.0


def test_a_converted_file_does_not_name_the_program(model: Path) -> None:
    quantize(*SCALING)
    done = CliRunner().invoke(main, ["convert", "out.pt", "other.pt"])
    assert done.exit_code == 0, done.stderr
    assert "out.factor runs out.pt and is not converted" in done.stderr
    assert "runtime" not in computekit.open_model("other.pt").metadata["compression"]
    computekit.load_module("other.pt")


def test_a_program_that_was_changed_by_hand_stays(model: Path) -> None:
    quantize(*SCALING)
    Path("out.factor").write_text("by hand")
    assert "is no part of out.pt" in quantize(*SCALING, code=1)
    quantize("--int8", "model.pt", "-o", "out.pt")
    assert Path("out.factor").read_text() == "by hand"


def test_a_failure_leaves_the_old_file_and_its_program(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quantize(*SCALING)
    FACTOR[0] = 3.0
    before, moved = Path.replace, []

    def replace(self: Path, target: Path) -> Path:
        moved.append(self.name)
        if self.name == "out.pt":
            raise OSError(28, "No space left on device", str(self))
        return before(self, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", replace)
        assert "the disk is full" in quantize(*SCALING, code=1)
    assert moved[:2] == ["out.factor", "out.pt"]
    assert here() == {"model.pt", "out.pt", "out.factor"}
    assert factor() == 2.0


def test_after_a_kill_between_program_and_file_the_old_pair_runs_and_can_be_replaced(model: Path) -> None:
    quantize(*SCALING)
    left = Path(".out.pt.0123abcd.tmp", ".before")  # what files.atomic leaves there, see its own test
    left.mkdir(parents=True)
    shutil.copy("out.factor", left)
    Path("out.factor").write_text("3.0")
    assert factor() == 2.0
    FACTOR[0] = 4.0
    quantize(*SCALING)
    assert factor() == 4.0


@pytest.mark.parametrize(
    ("backend", "problem"),
    [("broken", "no such driver"), ("failing", "the kernel failed")],
)
@pytest.mark.parametrize("data", [(), ("--data", "digits", "--metric", "cosine")])
def test_a_backend_that_breaks_is_an_error_of_one_line(
    backend: str, problem: str, data: tuple[str, ...], model: Path
) -> None:
    told = quantize("--int8", "--backend", backend, "model.pt", "-o", "out.pt", *data, code=1)
    assert problem in told
    assert "Traceback" not in told
    assert "and more" not in told
    assert here() == {"model.pt"}


def test_a_file_without_code_is_written_and_a_note_says_that_it_was_not_run(model: Path) -> None:
    torch.save(computekit.load_module(model)[0].state_dict(), "weights.pt")
    told = quantize("--int8", "--backend", "broken", "weights.pt", "-o", "out.pt", "--json")
    assert "whether broken runs the file was not tried" in told
    assert "holds weights without code" in told
