"""Published runs: every row predicted or listed, the error table as a golden file, intervals that follow from it."""

from __future__ import annotations

import csv
import json
import os
from importlib import resources
from pathlib import Path

import pytest
from click.testing import CliRunner

from computekit.cli import main
from computekit_estimator import accuracy, runs, validate
from computekit_estimator.constants import CONSTANTS

GOLDEN = Path(__file__).parents[1] / "golden" / "estimator_validate.txt"
ROW_KEYS = ["id", "kind", "published", "predicted", "error", "unit", "reason_skipped"]


@pytest.fixture(scope="module")
def everything():
    table = runs.load()
    return table, [validate.compare(run) for run in table]


def invoke(*words: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(main, ["estimator", *map(str, words)])
    return result.exit_code, result.stdout, result.stderr


def test_the_error_table_is_the_golden_one(everything):
    """Set UPDATE_GOLDEN=1 to accept a change; then also run python -m computekit_estimator.accuracy."""
    groups = validate.summary(*everything)
    text = "\n".join(f"{title}\n{validate.errors_table(group)}\n" for title, group in groups.items())
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text(text, encoding="utf-8")
    assert text == GOLDEN.read_text(encoding="utf-8")


def test_every_row_is_predicted_or_has_a_reason(everything):
    table, rows = everything
    assert [row.id for row in rows] == [run.id for run in table]
    for row in rows:
        assert (row.predicted is None) == (row.error is None) == (row.reason_skipped is not None)
        if row.predicted is not None:
            assert row.error == pytest.approx(row.predicted / row.published - 1)


def test_the_reach_of_training_time(everything):
    """One set of constants over all dense training rows: median at most 5 %."""
    _, rows = everything
    kinds = ("iter_time_s", "tokens_per_s_per_gpu", "tflops_per_gpu")
    errors = validate.summarise("", [row for row in rows if row.kind in kinds])
    assert errors.median <= 0.05 and abs(errors.bias) <= 0.03


def test_shipped_accuracy_is_that_of_the_shipped_table():
    shipped = json.loads((resources.files("computekit_estimator") / "data" / "accuracy.json").read_text())
    assert shipped == accuracy.measure()


def test_json_has_exactly_the_keys_that_others_rely_on():
    code, out, _ = invoke("validate", "--family", "mlm21_t1", "--json")
    document = json.loads(out)
    assert code == 0 and set(document) == {"rows", "assumed", "summary"}
    assert len(document["rows"]) == 30
    assert all(list(row) == ROW_KEYS for row in document["rows"])


def test_any_csv_with_these_columns_is_taken(tmp_path):
    path = tmp_path / "mine.csv"
    first = runs.load()[1].cells
    strange = [
        {**first, "id": "mine_1"},
        {**first, "id": "mine_2", "kind": "bananas"},
        {**first, "id": "mine_3", "hardware": "Z9000"},
        {**first, "id": "mine_4", "value": "fast"},
        {**first, "id": "mine_5", "heads": "7x"},
        {**first, "id": "mine_6", "dp": "3"},
        {**first, "id": "mine_7", "value": "inf"},
        {**first, "id": "mine_8", "tp": "0"},
        {**first, "id": "mine_9", "layers": "-4"},
        {**first, "id": "mine_10", "seq": "1e999"},
        {**first, "id": "mine_11", "value": "-3"},
        {**first, "id": "mine_12", "unit": "TFLOP/s/GPU"},
    ]
    with path.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, list(first))
        writer.writeheader()
        writer.writerows(strange)
    code, out, _ = invoke("validate", "--runs", path, "--json")
    rows = json.loads(out)["rows"]
    assert code == 0 and len(rows) == len(strange)
    assert rows[0]["reason_skipped"] is None
    assert "bananas" in rows[1]["reason_skipped"]
    assert "Z9000" in rows[2]["reason_skipped"]
    assert all(row["reason_skipped"] for row in rows[1:])


@pytest.mark.parametrize(
    ("kind", "own", "other", "ratio"),
    [
        ("iter_time_s", "s", "ms", 1000),
        ("train_days", "days", "hours", 24),
        ("decode_latency_ms", "ms/token", "s/token", 1e-3),
        ("e2e_latency_ms", "ms", "s", 1e-3),
        ("prefill", "ms", "s (first token)", 1e-3),
        ("peak_memory_gb", "GB", "GiB (max reserved over ranks)", 1e9 / 2**30),
        ("peak_memory_gb", "GB", "MB", 1000),
        ("tflops_per_gpu", "TFLOP/s/GPU", "PFLOP/s/GPU", 1e-3),
        ("mfu", "fraction", "%", 100),
        ("iter_time_s", "s", "a unit of its own", 1),
    ],
)
def test_predictions_are_in_the_published_unit(kind, own, other, ratio):
    run = next(r for r in runs.load() if r.kind == kind and validate.compare(r).predicted)
    in_own, in_other = (validate.compare(runs.Run({**run.cells, "unit": unit})).predicted for unit in (own, other))
    assert in_other == pytest.approx(ratio * in_own)


@pytest.mark.parametrize("kind", sorted({run.kind for run in runs.load()}))
def test_a_unit_of_another_quantity_is_refused_not_compared(kind):
    """The units of the shipped table are all understood as their kind's own."""
    run = next(r for r in runs.load() if r.kind == kind)
    assert "the unit" not in (validate.compare(run).reason_skipped or "")
    if kind in ("iter_time_s", "prefill", "mfu", "peak_memory_gb"):
        wrong = validate.compare(runs.Run({**run.cells, "unit": "tokens/s"}))
        assert wrong.predicted is None and "'tokens/s' is a rate of tokens" in wrong.reason_skipped


@pytest.mark.parametrize(
    ("content", "says"),
    [("id,kind\n", "has no column value, unit"), ("", "has no column"), ("\xff\xfe", "")],
)
def test_a_csv_of_another_kind_is_refused(tmp_path, content, says):
    path = tmp_path / "bad.csv"
    path.write_bytes(content.encode("latin-1"))
    code, _, err = invoke("validate", "--runs", path)
    assert code == 1 and says in err and len(err.strip().splitlines()) == 1


def test_an_unknown_family_is_named_with_near_ones():
    code, _, err = invoke("validate", "--family", "blom")
    assert code == 1 and "bloomq" in err


def test_held_out_families_are_never_fitted():
    families = {run.family for run in runs.load()}
    assert set(validate.FITTED) < families
    assert {"mlm21_t2", "titan", "mlm24", "trtllm05"}.isdisjoint(validate.FITTED)


def test_constants_are_physical():
    shares = [value for name, value in vars(CONSTANTS).items() if not name.endswith(("_s", "_k", "_ramp", "_gain"))]
    assert all(0 < share <= 1 for share in shares)
