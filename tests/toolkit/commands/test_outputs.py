"""Where ``computekit table`` and ``report`` write: never over a record that they read."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from computekit import cli


@pytest.mark.parametrize("command", ["table", "report"])
def test_a_record_is_never_replaced_by_what_is_made_of_it(command: str, tmp_path: Path) -> None:
    torch.save({"fc.weight": torch.randn(64, 64)}, tmp_path / "a.pt")
    made = CliRunner().invoke(cli.main, ["convert", str(tmp_path / "a.pt"), str(tmp_path / "b.pt")])
    assert made.exit_code == 0, made.output
    record = tmp_path / "b.pt.record.json"
    before = record.read_bytes()
    refused = CliRunner().invoke(cli.main, [command, str(record), "-o", str(record)])
    assert refused.exit_code == 1 and "is the input itself" in refused.output
    assert record.read_bytes() == before
    written = CliRunner().invoke(cli.main, [command, str(record), "-o", str(tmp_path / "out")])
    assert written.exit_code == 0 and (tmp_path / "out").stat().st_size > 0
