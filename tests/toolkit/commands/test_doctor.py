"""``computekit doctor``: what it reports is what setup.cfg declares, and what the host found."""

from __future__ import annotations

import configparser
import re
from pathlib import Path
from types import ModuleType

import pytest

from computekit import host
from computekit.commands import doctor
from computekit.loading import LoadedPlugin

SETUP = Path(__file__).parents[3] / "setup.cfg"


def declared() -> configparser.ConfigParser:
    parser = configparser.ConfigParser()
    parser.read(SETUP, encoding="utf-8")
    return parser


def names(requirements: str) -> set[str]:
    return {re.split(r"[<>=;\[ ]", line.strip())[0] for line in re.split(r"[\n;]", requirements) if line.strip()}


def test_every_required_distribution_is_shown() -> None:
    assert set(doctor.REQUIRED) == names(declared()["options"]["install_requires"])


def test_every_extra_is_shown_with_its_distributions() -> None:
    extras = dict(declared()["options.extras_require"])
    for whole in ("all", "dev"):
        extras.pop(whole)
    assert {extra: set(packages) for extra, packages in doctor.EXTRAS.items()} == {
        extra: names(text) for extra, text in extras.items()
    }


def test_a_missing_extra_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "version", lambda name: None if name == "onnx" else "1.0")
    assert doctor.examine()["extras"]["onnx"]["missing"] == ["onnx"]


@pytest.mark.parametrize(
    ("loaded", "remark"),
    [
        (LoadedPlugin("p", "d", "1", ModuleType("p"), import_s=0.2), "200.0 ms to import; SLOW: it does too much"),
        (LoadedPlugin("p", "d", "1", ModuleType("p"), 0.9, ("torch",)), "SLOW: it imports torch; move that import"),
        (LoadedPlugin("p", "d", "1", ModuleType("p"), 0.001, (), "hi"), "prints 2 characters when it is imported"),
        (LoadedPlugin("p", "d", "1", ModuleType("p"), 0.001), "1.0 ms to import"),
    ],
)
def test_what_is_wrong_with_a_plugin_is_told(loaded: LoadedPlugin, remark: str) -> None:
    registry = host.Host.of()
    registry.plugins.append(loaded)
    with host.using(registry):
        assert remark in doctor.examine()["plugins"][-1]["state"]
