"""Schemes come from plugins, through a hook that the quantize plugin declares."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

import computekit
import computekit_quantize
from computekit import ComputekitError, host
from computekit.cli import main
from computekit.models import compressed
from computekit.models.compressed import QuantizedWeight
from computekit_quantize import Scheme, schemes
from computekit_quantize.plan import Treatment


def _ternary(weight: torch.Tensor, bits: int, group: int | None, name: str) -> compressed.QuantizedWeight:
    """-1, 0 or 1 times the mean absolute value of the row."""
    scale = weight.flatten(1).abs().mean(1, keepdim=True)
    values = (weight / scale.reshape(-1, *[1] * (weight.ndim - 1))).round().clamp(-1, 1).to(torch.int8)
    return compressed.QuantizedWeight(values, scale, bits)


@computekit.hookimpl(optionalhook=True)
def computekit_quantization_schemes() -> list[Scheme]:
    return [Scheme("ternary", "-1, 0, 1", 4, _ternary)]


@pytest.fixture
def with_ternary(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    registry = host.Host.of(("quantize", computekit_quantize), ("ternary", sys.modules[__name__]))
    monkeypatch.setattr(host, "current", lambda: registry)
    yield


def test_a_third_party_scheme_is_a_name_away(with_ternary: None, tmp_path: Path) -> None:
    torch.save({"fc.weight": torch.randn(256, 256)}, tmp_path / "fc.pt")
    result = CliRunner().invoke(main, ["quantize", "--scheme", "ternary", str(tmp_path / "fc.pt")])
    assert result.exit_code == 0, result.stderr
    module = computekit.load_into(torch.nn.Linear(256, 256, bias=False), tmp_path / "fc-ternary.pt")
    assert [row.unique().numel() for row in module.weight] == [3] * 256


def test_an_unknown_scheme_suggests_the_nearest(with_ternary: None, tmp_path: Path) -> None:
    torch.save({"fc.weight": torch.randn(256, 256)}, tmp_path / "fc.pt")
    result = CliRunner().invoke(main, ["quantize", "--scheme", "ternery", str(tmp_path / "fc.pt")])
    assert result.exit_code == 1
    assert "did you mean ternary?" in result.stderr


@pytest.mark.parametrize(
    ("made", "fault"),
    [
        (lambda weight: None, "a NoneType, not a QuantizedWeight"),
        (lambda weight: weight, "a Tensor, not a QuantizedWeight"),
        (lambda weight: QuantizedWeight(weight[:1].char(), weight[:, :1], 8), r"values of shape \(1, 3\) for \(2, 3\)"),
        (lambda weight: QuantizedWeight(weight.char(), weight[:, :1] / 0, 8), "scales that are not finite"),
    ],
)
def test_a_scheme_that_returns_nonsense_is_at_fault(made: Any, fault: str) -> None:
    odd = Scheme("odd", "odd", 8, lambda weight, bits, group, name: made(weight))
    with pytest.raises(ComputekitError, match=f"scheme 'odd' is at fault: for w it returned {fault}"):
        Treatment(odd, None, "float").round(torch.ones(2, 3), "w")


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (Scheme("three", "3 bits", 3, _ternary), "it has 3 bits, and the file's format has 4 and 8"),
        (Scheme("half", "16 bits", 16, _ternary), "it has 16 bits"),
        (Scheme("two words", "a space", 4, _ternary), "its name is no single word"),
        (Scheme("eighths", "a group of 0", 4, _ternary, 0), "its default_group is 0"),
        (Scheme("text", "no function", 4, "round"), "its quantize is a str, not a function"),  # type: ignore[arg-type]
        (Scheme("odd", "odd values", 8, _ternary, values="fixed"), "its values are 'fixed'"),  # type: ignore[arg-type]
    ],
)
def test_a_scheme_that_no_file_can_hold_is_refused_when_it_is_registered(bad: Scheme, why: str) -> None:
    """Its plugin is named, and what else the plugin has is as good as before."""
    plugin = types.ModuleType("plugin")
    good = Scheme("good", "as it should be", 4, _ternary)
    hook = computekit.hookimpl(optionalhook=True)(lambda: [bad, good])
    plugin.computekit_quantization_schemes = hook  # type: ignore[attr-defined]
    registry = host.Host.of(("quantize", computekit_quantize), ("odd-one", plugin), strict=False)
    with host.using(registry):
        found = schemes.known()
    assert "good" in found and bad.name not in found
    assert set(schemes.BUILT_IN) <= set(found.values())
    [failure] = registry.failures
    assert failure.name == "odd-one"
    assert f"a Scheme {bad.name!r} that cannot be used: {why}" in failure.reason
    assert "\n" not in failure.reason


def test_schemes_that_come_with_the_plugin_have_no_fault() -> None:
    assert [scheme.fault for scheme in schemes.BUILT_IN] == [""] * len(schemes.BUILT_IN)
