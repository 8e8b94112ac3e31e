"""How many parameters a measured model has, where the module that runs it holds none."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner
from torch import nn

import computekit
from computekit.cli import main
from computekit.testing import make_model
from computekit_benchmark import isolated
from computekit_benchmark.jobs import Subject


def test_a_program_has_the_parameters_of_its_model_file(tmp_path: Path) -> None:
    path = make_model(tmp_path / "model.pt")
    result = CliRunner().invoke(main, ["quantize", "--int8", str(path), "-o", str(tmp_path / "int8.pt")])
    assert result.exit_code == 0, result.stderr
    module, _, _ = computekit.load_module(path)
    expected = sum(parameter.numel() for parameter in module.parameters())
    program = nn.Identity()  # holds no parameters, as what runs an exported program does
    assert isolated._parameters(program, Subject("a", path=str(path))) == expected
    assert isolated._parameters(program, Subject("a", path=str(tmp_path / "int8.pt"))) == expected
    assert isolated._parameters(module, Subject("a", path=None)) == expected
    assert isolated._parameters(program, Subject("a", path=None)) == 0
