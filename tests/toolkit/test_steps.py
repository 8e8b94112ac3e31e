"""`StepRun`: what every step gets for free. A tiny step, `stamp`, turns a file into a file."""

from __future__ import annotations

import dataclasses
import json
import threading
from pathlib import Path
from types import ModuleType

import click
import pytest
from click.testing import CliRunner, Result

import computekit
from computekit import host, options, records
from computekit.cli import main


@click.command()
@options.model
@click.option("--flops", type=float)
@click.option("--fail", is_flag=True)
@options.step
def stamp(run: computekit.StepRun, model: Path, flops: float | None, fail: bool) -> None:
    """Append the seed and a random number to a file."""
    import random

    source = run.input(model)
    assert run.device.type == "cpu"
    run.say("working")
    with run.writing(model.with_stem(model.stem + "-stamped")) as temporary:
        temporary.write_text(f"{source.read_text()} {run.seed} {random.random()}")
        if fail:
            raise ValueError("boom")
    if flops is not None:
        run.spent_training(flops)
    run.put("file_bytes", 3, "B", how="measured")
    run.note("a note")


@click.command()
@options.records
@options.step
def count(run: computekit.StepRun, records: tuple[Path, ...]) -> None:
    """Count records."""
    for path in records:
        run.row(path.name).quantities["x"] = computekit.Quantity(value=len(run.input(path).name))


@pytest.fixture(autouse=True)
def only_these_steps(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plugin = ModuleType("test_plugin")
    plugin.computekit_steps = computekit.hookimpl(  # type: ignore[attr-defined]
        lambda: [
            computekit.Step("stamp", stamp, takes="model", gives="model"),
            computekit.Step("count", count, takes="records", gives="record"),
        ],
        specname="computekit_steps",
    )
    registry = host.Host.of(("test", plugin))
    monkeypatch.setattr(host, "current", lambda: registry)
    monkeypatch.chdir(tmp_path)
    Path("m.pt").write_text("m")


def run(*words: str) -> Result:
    return CliRunner().invoke(main, list(words), catch_exceptions=False)


def test_the_result_and_its_record_lie_beside_the_input() -> None:
    result = run("stamp", "m.pt", "--device", "cpu")
    assert result.exit_code == 0, result.output
    record = records.load("m-stamped.pt.record.json")
    assert record.step == "stamp"
    assert record.inputs == [records.FileRef.of("m.pt")]
    assert record.output == records.FileRef.of("m-stamped.pt")
    assert record.rows[0].label == "m-stamped"
    assert record.options == {
        "model": "m.pt",
        "flops": None,
        "fail": False,
        "seed": 0,
        "device": "cpu",
        "threads": None,
    }
    assert record.notes == ["a note"]
    assert record.device is not None
    assert record.device.kind == "cpu"


def test_json_is_the_record_and_alone_on_stdout() -> None:
    result = run("stamp", "m.pt", "--json")
    assert json.loads(result.stdout) == json.loads(Path("m-stamped.pt.record.json").read_text())
    assert "working" in result.stderr


@pytest.mark.parametrize("words", [("--quiet", "stamp", "m.pt"), ("stamp", "m.pt", "--quiet")])
def test_quiet_silences_stderr_but_not_the_result(words: tuple[str, ...]) -> None:
    result = run(*words)
    assert result.stderr == ""
    assert "file size" in result.stdout


def test_same_seed_same_bytes_and_record() -> None:
    for name in ("a.pt", "b.pt"):
        run("stamp", "m.pt", "-o", name, "--seed", "5", "--threads", "1", "--label", "x")
    assert Path("a.pt").read_bytes() == Path("b.pt").read_bytes()
    first, second = (records.load(f"{name}.record.json").reproducible() for name in ("a.pt", "b.pt"))
    assert first["rows"] == second["rows"]
    run("stamp", "m.pt", "-o", "c.pt", "--seed", "6")
    assert Path("a.pt").read_bytes() != Path("c.pt").read_bytes()


def test_an_error_keeps_the_old_output_and_record() -> None:
    run("stamp", "m.pt")
    before = {p.name: p.read_bytes() for p in Path().iterdir()}
    result = run("stamp", "m.pt", "--fail")
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1].startswith("Error: internal error in plugin (given), ValueError: boom")
    assert {p.name: p.read_bytes() for p in Path().iterdir()} == before


def test_debug_shows_the_traceback() -> None:
    assert "Traceback" in run("stamp", "m.pt", "--fail", "--debug").stderr
    assert "Traceback" not in run("stamp", "m.pt", "--fail").stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("stamp", "nn.pt"), "nn.pt: no such model file"),
        (("stamp", "m2.pt"), "did you mean m.pt?"),
        (("stamp", "m.pt", "-o", "no/x.pt"), "the folder no does not exist"),
        (("stamp", "m.pt", "-o", "m.pt"), "is the input itself"),
        (("stamp", "m.pt", "--device", "cuda:7"), "device 'cuda:7' is not available"),
    ],
)
def test_bad_input_is_one_line_and_exit_1(words: tuple[str, ...], message: str) -> None:
    result = run(*words)
    assert result.exit_code == 1
    lines = [line for line in result.stderr.splitlines() if line != "working"]
    assert len(lines) == 1
    assert message in lines[0]


@pytest.mark.parametrize("words", [("stamp",), ("stamp", "m.pt", "--seed", "x"), ("stamp", "m.pt", "--what")])
def test_wrong_usage_is_one_line_and_exit_2(words: tuple[str, ...]) -> None:
    result = run(*words)
    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 1
    assert "--help" in result.stderr


def test_training_cost_adds_up_over_the_lineage() -> None:
    Path("start.pt").write_text("s")
    records.Record(
        step="train", output=records.FileRef.of("start.pt"),
        lineage=[records.Lineage(step="train", sha256="0", train_flops=100.0)],
    ).save("start.pt.record.json")  # fmt: skip
    run("stamp", "start.pt", "-o", "next.pt", "--flops", "10")
    run("stamp", "next.pt", "-o", "last.pt")
    record = records.load("last.pt.record.json")
    assert record.rows[0].quantities["train_flops"].value == 110.0
    assert [entry.step for entry in record.lineage] == ["train", "stamp", "stamp"]


def test_training_cost_of_a_stranger_is_unknown_not_zero() -> None:
    run("stamp", "m.pt")
    cost = records.load("m-stamped.pt.record.json").rows[0].quantities["train_flops"]
    assert cost.value is None
    assert cost.reason == "no record beside m.pt tells how it was trained"


def test_the_record_of_other_bytes_tells_nothing_of_the_training() -> None:
    run("stamp", "m.pt", "--flops", "10")
    run("stamp", "m-stamped.pt", "-o", "next.pt")
    assert [entry.step for entry in records.load("next.pt.record.json").lineage] == ["stamp", "stamp"]
    Path("m-stamped.pt").write_text("other bytes")
    run("stamp", "m-stamped.pt", "-o", "next.pt")
    record = records.load("next.pt.record.json")
    assert [entry.step for entry in record.lineage] == ["stamp"]
    assert record.rows[0].quantities["train_flops"].reason == "no record beside m-stamped.pt tells how it was trained"


def test_a_damaged_record_beside_the_input_is_refused_before_the_work() -> None:
    Path("m.pt.record.json").write_text("{}")
    result = run("stamp", "m.pt")
    assert result.exit_code == 1
    assert "m.pt.record.json: is JSON but not a computekit record" in result.stderr
    assert "working" not in result.stderr


def test_an_input_that_changes_while_it_is_read_leaves_the_old_output(monkeypatch: pytest.MonkeyPatch) -> None:
    run("stamp", "m.pt")
    before = Path("m-stamped.pt").read_bytes()
    monkeypatch.setattr(computekit.StepRun, "say", lambda self, text: Path("m.pt").write_text("changed meanwhile"))
    result = run("stamp", "m.pt", "--seed", "3")
    assert result.exit_code == 1
    assert "m.pt: changed while it was read" in result.stderr
    assert Path("m-stamped.pt").read_bytes() == before
    assert sorted(p.name for p in Path().iterdir()) == ["m-stamped.pt", "m-stamped.pt.record.json", "m.pt"]


@pytest.mark.parametrize("exclusive", [True, False])
def test_nothing_hashes_beside_the_work_of_a_step_that_measures(
    exclusive: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_go, hashed = threading.Event(), threading.Event()
    hash_it = records.FileRef.of

    def slow(path: Path) -> records.FileRef:
        assert exclusive or let_go.wait(10)
        found = hash_it(path)
        hashed.set()
        return found

    monkeypatch.setattr(records.FileRef, "of", slow)
    seen = []

    def say(_run: computekit.StepRun, _text: str) -> None:
        seen.append(hashed.is_set())
        let_go.set()

    monkeypatch.setattr(computekit.StepRun, "say", say)
    step = dataclasses.replace(host.current().steps["stamp"], exclusive=exclusive)
    monkeypatch.setitem(host.current().steps, "stamp", step)
    assert run("stamp", "m.pt").exit_code == 0
    assert seen[0] is exclusive


def test_a_record_step_writes_its_record_to_the_output() -> None:
    run("stamp", "m.pt")
    result = run("count", "m-stamped.pt.record.json", "-o", "count.json")
    assert result.exit_code == 0
    record = records.load("count.json")
    assert record.output is None
    assert record.rows[0].label == "m-stamped.pt.record.json"
    assert [plugin.name for plugin in record.plugins] == ["test"]
