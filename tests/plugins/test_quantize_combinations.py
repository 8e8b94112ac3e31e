"""Every scheme with every way to compute: a combination works, or is refused in one line before anything is written."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

import computekit
from computekit.cli import main
from computekit.testing import make_model
from computekit_quantize import schemes

CALIBRATED = ("--calibration", "digits", "--calibration-samples", "8")


@pytest.mark.slow
@pytest.mark.parametrize("scheme", [each.name for each in schemes.BUILT_IN])
def test_each_combination_runs_or_is_refused(scheme: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    original, _, _ = computekit.load_module(make_model(Path("model.pt")))
    images = computekit.load_data("digits").test.inputs[:8]  # what the calibrated schemes are made for
    worked = 0
    ways = itertools.product((None, "float", "dynamic", "static"), (None, "bf16"), ((), CALIBRATED))
    for activations, rest, data in ways:
        words = ["quantize", "--scheme", scheme, "model.pt", "-o", "out.pt", *data]
        words += ["--activations", activations] if activations else []
        words += ["--rest", rest] if rest else []
        done = CliRunner().invoke(main, words)
        if done.exit_code:
            told = [line for line in done.stderr.splitlines() if line.startswith("Error: ")]
            assert done.exit_code in (1, 2), words
            assert len(told) == 1, words
            assert not Path("out.pt").exists(), words
            continue
        worked += 1
        module, _, _ = computekit.load_module("out.pt")
        with torch.no_grad():
            near = torch.cosine_similarity(module(images).float(), original(images), -1)
        assert near.mean() > 0.9, words
        Path("out.pt").unlink()
    assert worked >= 2


def test_weights_in_float8_stay_so_where_the_rest_computes_in_bf16(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    original, _, _ = computekit.load_module(make_model(Path("model.pt")))
    words = ["quantize", "--scheme", "fp8", "--rest", "bf16", "--activations", "dynamic", "model.pt", "-o", "out.pt"]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.stderr
    module, _, _ = computekit.load_module("out.pt")
    kinds = {tensor.dtype for tensor in (*module.parameters(), *module.buffers())}
    assert torch.float8_e4m3fn in kinds
    assert torch.float32 not in kinds
    images = computekit.load_data("digits").test.inputs[:8]
    with torch.no_grad():
        assert torch.cosine_similarity(module(images).float(), original(images), -1).min() > 0.99
