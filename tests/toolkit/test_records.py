"""Records: the schema, reading and refusing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from computekit import records
from computekit.errors import FileProblem
from computekit.records import Quantity, Record, Row


def write(path: Path, **changes: object) -> Path:
    path.write_text(json.dumps({"schema_version": 1, "step": "train", **changes}))
    return path


def test_round_trip(tmp_path: Path) -> None:
    record = Record(
        step="benchmark",
        options={"batch_size": 4},
        rows=[
            Row(label="m", quantities={"latency_s": Quantity(value=0.5, unit="s", how="measured", samples=[0.5, 0.6])})
        ],
        timing={"duration_s": 1.5},
    )
    record.save(tmp_path / "r.json")
    assert records.load(tmp_path / "r.json") == record


@given(st.one_of(st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text()))
def test_values_survive(value: float | int | str) -> None:
    record = Record(step="s", rows=[Row(label="m", quantities={"x": Quantity(value=value)})])
    assert Record.model_validate_json(record.to_json()) == record


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_number_that_is_not_finite_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        Quantity(value=value)


def test_an_unknown_value_needs_a_reason() -> None:
    with pytest.raises(ValueError, match="reason"):
        Quantity(value=None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not a record"),
        ("{", "is not a record"),
        ("[]", "not a computekit record"),
        ('{"step": "x"}', "not a computekit record"),
        ('{"schema_version": 99, "step": "x"}', "schema 99"),
        ('{"schema_version": "1", "step": "x"}', "not a whole number"),
        ('{"schema_version": 1, "step": "x", "colour": 1}', "damaged record: colour"),
        ('{"schema_version": 1, "step": "x", "rows": [{"label": 3}]}', "damaged record: rows.0.label"),
    ],
)
def test_bad_files_are_refused_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "r.json"
    path.write_text(text)
    with pytest.raises(FileProblem, match=message) as caught:
        records.load(path)
    assert str(path) in str(caught.value)


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(FileProblem, match="no such file"):
        records.load(tmp_path / "none.json")
    with pytest.raises(FileProblem, match="is a folder"):
        records.load(tmp_path)


def test_a_model_given_as_a_record_names_the_record(tmp_path: Path) -> None:
    model = tmp_path / "m.pt"
    model.write_bytes(b"\x80\x02")
    write(records.beside(model))
    with pytest.raises(FileProblem, match=r"m\.pt\.record\.json"):
        records.load(model)


def test_reproducible_drops_what_was_measured() -> None:
    measured = Quantity(value=1.0, how="measured")
    record = Record(
        step="s", rows=[Row(label="m", quantities={"t": measured, "n": Quantity(value=3)})], timing={"duration_s": 9.0}
    )
    assert "timing" not in record.reproducible()
    assert list(record.reproducible()["rows"][0]["quantities"]) == ["n"]
