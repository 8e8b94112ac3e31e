"""Tables: joining records, printing numbers, marking the best and the Pareto-optimal."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from computekit import host, records, tables
from computekit.cli import main
from computekit.contracts import Column
from computekit.errors import UnknownName
from computekit.records import Device, FileRef, Quantity, Record, Row

GOLDEN = Path(__file__).parents[1] / "golden"

COLUMNS = [
    Column("latency_s", "latency", "ms", 1e-3, better="lower", pareto=True, order=20),
    Column("accuracy", "accuracy", "%", 0.01, better="higher", pareto=True, interval=True, order=5),
    Column("energy_j", "energy", "J", better="lower", order=40),
    Column("latency_p99_s", "latency p99", "ms", 1e-3, detail=True, order=41),
]


@pytest.fixture(autouse=True)
def columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns of this test only, whatever plugins are installed."""
    registry = host.Host.of()
    registry.__dict__["columns"] = sorted([*tables.COLUMNS, *COLUMNS], key=lambda c: (c.order, c.key))
    monkeypatch.setattr(host, "current", lambda: registry)


def quantity(value: float | int | str | None, unit: str = "", **about: object) -> Quantity:
    return Quantity.model_validate({"value": value, "unit": unit, **about})


def example() -> list[Record]:
    """A model step for each of two models, and a benchmark over both."""
    device = Device(kind="cpu", name="Test CPU", threads=1)
    train = Record(
        step="train",
        rows=[Row(label="model", sha256="a", quantities={
            "parameters": quantity(12345), "file_bytes": quantity(51_234, "B"), "accuracy": quantity(0.9),
        })],
        device=device,
    )  # fmt: skip
    int8 = Record(
        step="quantize",
        rows=[Row(label="model-int8", sha256="b", quantities={
            "parameters": quantity(12345), "file_bytes": quantity(13_001, "B"),
        })],
    )  # fmt: skip
    bench = Record(
        step="benchmark",
        rows=[
            Row(label="baseline", sha256="a", quantities={
                "latency_s": quantity(0.00123, "s", how="measured"),
                "accuracy": quantity(0.9722, "1", interval=(0.95, 0.98)),
                "energy_j": quantity(None, "J", reason="no counter"),
            }),
            Row(label="int8 & <co>", sha256="b", quantities={
                "latency_s": quantity(0.00234, "s", how="measured"),
                "accuracy": quantity(0.97, "1", interval=(0.94, 0.98)),
                "energy_j": quantity(None, "J", reason="no counter"),
            }),
        ],
        device=device,
        notes=["batch size 1"],
    )  # fmt: skip
    return [train, int8, bench]


def test_rows_join_by_model_and_later_records_win() -> None:
    table = tables.build(example())
    assert [row.label for row in table.rows] == ["baseline", "int8 & <co>"]
    assert table.rows[0].value("accuracy") == 0.9722
    assert table.rows[0].value("file_bytes") == 51_234


def test_a_known_value_is_not_replaced_by_an_unknown_one() -> None:
    later = Record(
        step="x", rows=[Row(label="m", sha256="a", quantities={"accuracy": quantity(None, reason="no data")})]
    )
    assert tables.build([*example(), later]).rows[0].value("accuracy") == 0.9722


def test_two_names_of_the_same_bytes_are_two_rows() -> None:
    model = Record(step="m", rows=[Row(label="m", sha256="a", quantities={"parameters": quantity(7)})])
    named = [("x", 1.0), ("y", 2.0)]
    rows = [Row(label=n, sha256="a", quantities={"latency_s": quantity(t, "s")}) for n, t in named]
    bench = Record(step="b", rows=rows)
    found = tables.build([model, bench]).rows
    assert [(r.label, r.value("parameters"), r.value("latency_s")) for r in found] == [("x", 7, 1.0), ("y", 7, 2.0)]


def test_models_that_came_out_equal_are_two_rows_without_a_record_of_both() -> None:
    """Two variants of a pipeline may end in the same bytes; neither hides the other."""

    def step(label: str, changed: int) -> Record:
        row = Row(label=label, sha256="a", quantities={"file_bytes": quantity(changed, "B")})
        return Record(step="s", rows=[row], output=FileRef(path=f"{label}.pt", sha256="a", bytes=1))

    count = Record(step="count", rows=[Row(label="x", sha256="a", quantities={"parameters": quantity(7)})])
    found = tables.build([step("x", 1), step("y", 2), step("y", 2), count]).rows
    assert [(r.label, r.value("file_bytes"), r.value("parameters")) for r in found] == [("x", 1, 7), ("y", 2, None)]
    renamed = Record(step="b", rows=[Row(label="final", sha256="a", quantities={"latency_s": quantity(1.0, "s")})])
    assert [r.label for r in tables.build([step("x", 1), renamed]).rows] == ["final"]
    assert [(r.label, r.value("latency_s")) for r in tables.build([step("x", 1), step("y", 2), renamed]).rows] == [
        ("x", 1.0), ("y", 1.0)
    ]  # fmt: skip


def test_rows_without_a_hash_join_by_label() -> None:
    note = Record(step="n", rows=[Row(label="baseline", quantities={"energy_j": quantity(3.0, "J")})])
    assert tables.build([note, *example()]).rows[0].value("energy_j") == 3.0


def test_pareto_marks_only_undominated_rows() -> None:
    table = tables.build(example())
    assert [row.pareto for row in table.rows] == [True, False]


@pytest.mark.parametrize("fmt", ["github", "plain", "latex", "html", "csv", "json"])
def test_golden(fmt: str, request: pytest.FixtureRequest) -> None:
    text = tables.build(example()).render(fmt)
    assert text == (GOLDEN / f"table.{fmt}").read_text(encoding="utf-8")


def test_csv_and_json_hold_raw_values() -> None:
    table = tables.build(example())
    row = next(csv.DictReader(io.StringIO(table.render("csv"))))
    assert (row["latency_s"], row["accuracy_low"], row["energy_j"]) == ("0.00123", "0.95", "")
    entry = json.loads(table.render("json"))[0]
    assert entry["quantities"]["energy_j"] == {"value": None, "unit": "J", "how": "computed", "reason": "no counter"}


def test_sort_puts_unknown_values_last() -> None:
    extra = Record(step="m", rows=[Row(label="other", sha256="c", quantities={"parameters": quantity(1)})])
    for direction, first in [("", "baseline"), (":desc", "int8 & <co>")]:
        table = tables.build([*example(), extra], sort=f"latency_s{direction}")
        assert [row.label for row in table.rows][::2] == [first, "other"]


def test_unknown_column_names_the_nearest() -> None:
    with pytest.raises(UnknownName, match="did you mean accuracy"):
        tables.build(example(), columns=["acuracy"])


def test_details_are_shown_only_when_asked_for() -> None:
    p99 = Record(step="b", rows=[Row(label="x", sha256="a", quantities={"latency_p99_s": quantity(0.5, "s")})])
    assert "latency p99" not in tables.build([*example(), p99]).render()
    assert "500" in tables.build([*example(), p99], columns=["latency_p99_s"]).render()


def test_one_note_stands_for_all_that_no_record_tells() -> None:
    extra = Record(step="m", rows=[Row(label="other", sha256="c", quantities={"parameters": quantity(1)})])
    notes = tables.build([*example(), extra]).notes
    untold = "accuracy, file size, latency, energy"
    assert f"other blanks ({untold}): none of the given records tells" in notes


def test_notes_say_why_a_cell_is_blank_and_where_it_ran() -> None:
    notes = tables.build(example()).notes
    assert "blank energy: no counter" in notes
    assert "train, benchmark: on cpu (Test CPU, 1 thread)" in notes
    assert "batch size 1" in notes


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (12.3456, "12.3"), (1234.5, "1,234"), (0.012345, "0.0123"), (3.1e12, "3.10e+12"), (-2.5, "-2.50")],
)
def test_number(value: float, text: str) -> None:
    assert tables.number(value) == text


@given(st.floats(min_value=1e-300, max_value=1e300))
def test_number_keeps_three_significant_digits(value: float) -> None:
    assert float(tables.number(value).replace(",", "")) == pytest.approx(value, rel=0.006)


def test_command_writes_a_file(tmp_path: Path) -> None:
    paths = []
    for index, record in enumerate(example()):
        paths.append(str(tmp_path / f"{index}.json"))
        record.save(paths[-1])
    result = CliRunner().invoke(main, ["table", *paths, "--format", "csv", "-o", str(tmp_path / "t.csv")])
    assert result.exit_code == 0, result.output
    assert (tmp_path / "t.csv").read_text().startswith("model,accuracy,")
    result = CliRunner().invoke(main, ["table", *paths, "--columns", "accuracy"])
    assert "| baseline" in result.stdout


def test_command_refuses_what_is_no_record(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{}")
    result = CliRunner().invoke(main, ["table", str(tmp_path / "x.json")])
    assert result.exit_code == 1
    assert "not a computekit record" in result.stderr
    assert records.beside("m.pt").name == "m.pt.record.json"


def test_figures_from_two_machines_come_with_a_warning_that_says_why():
    here, there = example(), example()
    there[-1].device = Device(kind="cpu", name="Other CPU", threads=4)
    for record in (here[-1], there[-1]):
        for row in record.rows:
            row.quantities = {"latency_s": quantity(1.0, "s", how="measured")}
    assert not any("compared directly" in note for note in tables.build(here).notes)
    (warning,) = [note for note in tables.build([*here, *there]).notes if "compared directly" in note]
    assert "device (Test CPU and Other CPU)" in warning
    assert "number of threads (1 and 4)" in warning
    assert warning.endswith(": latency_s")
