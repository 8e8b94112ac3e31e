"""Shared options: how values are read, and what `options.step` hands to a step."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from computekit import options
from computekit.errors import FileProblem


def parse(text: str) -> dict[str, Any]:
    return options.Arguments().convert(text, None, None)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("depth=3,width=0.5", {"depth": 3, "width": 0.5}),
        ('{"depth": 3}', {"depth": 3}),
        ("shape=[1,2],name=mine", {"shape": [1, 2], "name": "mine"}),
        ("flag=true,other=True,none=null,gone=None", {"flag": True, "other": True, "none": None, "gone": None}),
        ('nested={"a": [1, {"b": 2}]}', {"nested": {"a": [1, {"b": 2}]}}),
        (" a = 1 , b = x ", {"a": 1, "b": "x"}),
        ("", {}),
    ],
)
def test_arguments(text: str, value: dict[str, Any]) -> None:
    assert parse(text) == value


@pytest.mark.parametrize("text", ["depth", "3=x", "a=1,b", "{not json", "[1]"])
def test_bad_arguments_are_wrong_usage(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is not"):
        parse(text)


@given(
    st.dictionaries(st.from_regex(r"[a-z]{1,6}", fullmatch=True), st.one_of(st.integers(), st.booleans(), st.none()))
)
def test_arguments_survive_being_written_out(value: dict[str, Any]) -> None:
    import json

    assert parse(",".join(f"{k}={json.dumps(v)}" for k, v in value.items())) == value
    assert parse(json.dumps(value)) == value


def test_a_missing_input_names_the_nearest_file(tmp_path: Path) -> None:
    (tmp_path / "model.pt").write_text("x")
    kind = options.InputPath("model")
    assert kind.convert(str(tmp_path / "model.pt"), None, None) == tmp_path / "model.pt"
    with pytest.raises(FileProblem, match=r"no such model file; did you mean .*/model\.pt\?"):
        kind.convert(str(tmp_path / "modle.pt"), None, None)
    with pytest.raises(FileProblem, match="check the name and the folder"):
        kind.convert(str(tmp_path / "no" / "where.pt"), None, None)


@click.command()
@options.models
@options.arch("--student", required=True)
@options.data()
@options.batch_size(32)
def sample(**values: Any) -> None:
    click.echo(repr(sorted(values.items())))


def test_the_folder_one_stands_in_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps name their result after the input; "." has no name to go by."""
    (tmp_path / "model" / "inner").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "model" / "inner")
    kind = options.InputPath("model")
    for given_name, name in ((".", "inner"), ("..", "model"), ("../inner", "inner"), ("./", "inner")):
        found = kind.convert(given_name, None, None)
        assert found.name == name and found.samefile(given_name) and not found.is_absolute()
    assert kind.convert("/", None, None) == Path("/")


def test_option_names_and_defaults(tmp_path: Path) -> None:
    (tmp_path / "a.pt").write_text("x")
    runner = CliRunner()
    result = runner.invoke(sample, [str(tmp_path / "a.pt"), "--student", "mlp", "--student-args", "depth=2"])
    assert result.exit_code == 0, result.output
    assert "('student', 'mlp')" in result.output
    assert "('student_args', {'depth': 2})" in result.output
    assert "('batch_size', 32)" in result.output
    assert runner.invoke(sample, []).exit_code == 2


@pytest.mark.parametrize("words", [["--seed", "-1"], ["--seed", "x"], ["--threads", "0"], ["--seed", str(2**63)]])
def test_step_options_check_their_range(words: list[str]) -> None:
    @click.command()
    @options.step
    def go(run: object) -> None:
        raise AssertionError("not reached")

    result = CliRunner().invoke(go, words)
    assert result.exit_code == 2
    assert words[0] in result.output


@pytest.mark.parametrize("text", ["nan", "inf", "-1", "0", "2.5", "two", ""])
def test_number_refuses_what_is_out_of_bounds_and_nan(text: str) -> None:
    with pytest.raises(click.BadParameter, match="number"):
        options.Number(above=0, at_most=2).convert(text, None, None)


@pytest.mark.parametrize(("text", "value"), [("2", 2.0), ("1e-9", 1e-9)])
def test_number_takes_what_is_in_bounds(text: str, value: float) -> None:
    assert options.Number(above=0, at_most=2).convert(text, None, None) == value


def test_number_shows_its_bounds_in_the_help() -> None:
    @click.command()
    @click.option("--share", type=options.Number(above=0, at_most=1), help="A share.")
    def go(share: float) -> None:
        pass

    assert "0<x<=1" in CliRunner().invoke(go, ["--help"]).output


def test_no_option_of_any_command_takes_nan() -> None:
    from computekit.cli import main

    def commands(command: click.Command, context: click.Context) -> list[click.Command]:
        if not isinstance(command, click.Group):
            return [command]
        inner = [command.get_command(context, name) for name in command.list_commands(context)]
        return [c for found in inner if found is not None for c in commands(found, click.Context(found))]

    checked = 0
    for command in commands(main, click.Context(main)):
        for parameter in command.params:
            if isinstance(parameter.type, (click.FloatRange, click.types.FloatParamType)):
                checked += 1
                for text in ("nan", "inf"):
                    with pytest.raises(click.BadParameter):
                        parameter.type.convert(text, parameter, None)
    assert checked > 20


def test_what_is_no_file_is_refused_before_it_is_read(tmp_path: Path) -> None:
    kind = options.InputPath("model")
    os.mkfifo(tmp_path / "pipe.pt")
    (tmp_path / "link.pt").symlink_to("nowhere.pt")
    (tmp_path / "loop.pt").symlink_to("loop.pt")
    for path, message in (
        (tmp_path / "pipe.pt", "is a device or a pipe"),
        (Path("/dev/zero"), "is a device or a pipe"),
        (tmp_path / "link.pt", r"is a link to nowhere\.pt, which is not there"),
        (tmp_path / "loop.pt", "is a link to"),
    ):
        with pytest.raises(FileProblem, match=message):
            kind.convert(str(path), None, None)
    with pytest.raises(click.BadParameter, match="empty name"):
        kind.convert("", None, None)
    assert options.InputPath("record").convert(str(tmp_path / "pipe.pt"), None, None) == tmp_path / "pipe.pt"


@pytest.mark.parametrize("name", ["nope", "cuda:", "cuda:x", "cpu:0", "", "CPU"])
def test_what_cannot_be_a_device_is_wrong_usage(name: str) -> None:
    with pytest.raises(click.BadParameter, match="is not auto, cpu, cuda"):
        options.DeviceName().convert(name, None, None)


def test_gathered_options_reach_the_command_as_one_argument() -> None:
    made = options.gathered("size", lambda width, height: (width, height), click.option("--width", type=int),
                            click.option("--height", type=int, default=2))  # fmt: skip

    @click.command()
    @click.argument("name")
    @made
    @click.option("--last", is_flag=True)
    def command(name: str, size: tuple[int, int], last: bool) -> None:
        click.echo(f"{name} {size} {last}")

    assert [parameter.name for parameter in command.params] == ["name", "width", "height", "last"]
    assert CliRunner().invoke(command, ["a", "--width", "1", "--last"]).output == "a (1, 2) True\n"


def test_a_sectioned_command_shows_topics_under_headings_and_the_rest_last() -> None:
    size = options.gathered("size", lambda width: width, click.option("--width", type=int), section="Size")

    @click.command(cls=options.Sectioned)
    @click.option("--first")
    @size
    def command(first: str, size: int) -> None: ...

    shown = CliRunner().invoke(command, ["--help"]).output
    assert shown.index("Size:") < shown.index("--width") < shown.index("Options:") < shown.index("--first")
