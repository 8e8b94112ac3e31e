"""Options of steps: checked before anything runs, and spelled in one way only."""

from __future__ import annotations

import os
import shlex
from typing import Any

import click
import pytest
from computekit_workflows import registry
from computekit_workflows.registry import ConfigError, Option, Step
from hypothesis import given
from hypothesis import strategies as st


def step(*options: Option) -> Step:
    return Step(
        "trim", ("trim",), "model", "model", False, False, "fake 1.0", {option.key: option for option in options}
    )


TRIM = step(
    Option("by", "--by", "number", required=True),
    Option("rounds", "--rounds", "integer"),
    Option("mode", "--mode", choices=("fast", "exact", "off")),
    Option("keep", "--keep", multiple=True),
    Option("deep", "--deep", "boolean", off_flag="--shallow"),
    Option("loud", "--loud", "boolean"),
    Option("extra", "--extra", "object"),
    Option("shape", "--shape"),
)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"buy": 1}, "here: step 'trim' has no option 'buy'; did you mean by?"),
        ({"zzz": 1}, "known: by, deep, extra, keep, loud, mode, rounds, shape"),
        ({"output": "x.pt"}, "here: 'output' is set by the pipeline; remove it"),
        ({"by": "much"}, "here.by: 'much' is not a number"),
        ({"by": True}, "here.by: True is not a number"),
        ({"by": [1, 2]}, "here.by: takes one number, not [1, 2]"),
        ({"rounds": 1.5}, "here.rounds: 1.5 is not a whole number"),
        ({"mode": "exakt"}, "here.mode: 'exakt' is not a choice; did you mean exact?"),
        ({"mode": False}, "put it in quotes"),
        ({"deep": "yes"}, "here.deep: 'yes' is not true or false"),
        ({"extra": "depth=2"}, "is not a mapping"),
        ({"keep": ["a", {"b": 1}]}, "here.keep: takes one string"),
        ({"shape": [3, [4]]}, "here.shape: [4] cannot stand in a list"),
    ],
)
def test_bad_option_is_one_line_that_says_where(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        registry.check_options(TRIM, options, "here")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_required_option_is_named() -> None:
    with pytest.raises(ConfigError, match="step 'trim' needs by"):
        registry.check_complete(TRIM, {"by": None, "mode": "fast"}, "here")


def test_options_are_spelled_in_the_order_of_the_command() -> None:
    options = {
        "extra": {"b": 1, "a": [2]},
        "keep": ["x y", "z"],
        "by": "1e-3",
        "deep": False,
        "loud": False,
        "shape": [3, 8],
    }
    assert registry.command_line(TRIM, options) == [
        "--by", "1e-3", "--keep", "x y", "--keep", "z", "--shallow", "--extra", '{"a": [2], "b": 1}', "--shape", "3,8",
    ]  # fmt: skip


@given(
    by=st.floats(allow_nan=False, allow_infinity=False),
    rounds=st.none() | st.integers(-(2**40), 2**40),
    mode=st.sampled_from(["fast", "exact", "off", None]),
    keep=st.lists(st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1), max_size=3),
    deep=st.booleans(),
)
def test_click_reads_back_what_the_config_said(
    by: float, rounds: int | None, mode: str | None, keep: list[str], deep: bool
) -> None:
    @click.command()
    @click.option("--by", type=float, required=True)
    @click.option("--rounds", type=int)
    @click.option("--mode", type=click.Choice(["fast", "exact", "off"]))
    @click.option("--keep", multiple=True)
    @click.option("--deep/--shallow", default=True)
    def command(**options: Any) -> dict[str, Any]:
        return options

    asked = {"by": by, "rounds": rounds, "mode": mode, "keep": keep, "deep": deep}
    registry.check_options(TRIM, asked, "here")
    words = shlex.split(shlex.join(registry.command_line(TRIM, asked)))
    assert command.main(words, standalone_mode=False) == {**asked, "keep": tuple(keep)}


def test_step_of_a_plugin_that_did_not_load_says_why() -> None:
    known = registry.Registry("computekit 0.1.0", {"trim": TRIM}, {"broken": "broken 1.0: ImportError: no torch"})
    with pytest.raises(ConfigError, match=r"here: step 'broken' is not available: broken 1.0: ImportError"):
        known.step("broken", "here")
    with pytest.raises(ConfigError, match=r"here: unknown step 'trin'; did you mean trim\?"):
        known.step("trin", "here")


def test_installed_steps_are_read_from_the_command_line() -> None:
    found = registry.installed()
    assert found.version.startswith("computekit ")
    assert not any("output" in step.options or "json" in step.options for step in found.steps.values())


@pytest.mark.parametrize(("plugins", "expected"), [(None, None), (["fake", "train==1"], "fake,train==1"), ([], "")])
def test_the_config_says_which_plugins_may_load(
    plugins: object, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COMPUTEKIT_ALLOW_PLUGINS", raising=False)
    registry.allow(plugins)
    assert os.environ.pop("COMPUTEKIT_ALLOW_PLUGINS", None) == expected
