"""The HTML page: complete, escaped, self-contained, deterministic."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from click.testing import CliRunner

from computekit import charts, report
from computekit.cli import main
from computekit.records import Quantity, Record, Row


def bench() -> Record:
    rows = [
        Row(label=name, sha256=name, quantities={
            "latency_s": Quantity(value=t, unit="s", how="measured", samples=[t, t]),
            "accuracy": Quantity(value=a, interval=(a - 0.01, a + 0.01)),
        })
        for name, t, a in [("<base>", 0.002, 0.97), ("small", 0.001, 0.95)]
    ]  # fmt: skip
    return Record(step="benchmark", rows=rows, options={"data": "<script>"})


class Checker(HTMLParser):
    """Counts tags and keeps what would load something from outside."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.outside: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "circle", "line", "polyline", "br"):
            self.open.append(tag)
        self.outside += [f"{tag} {k}" for k, v in attrs if k in ("src", "href") and v]

    def handle_endtag(self, tag: str) -> None:
        if tag in self.open:
            assert self.open.pop() == tag


def test_page_is_well_formed_and_needs_nothing_from_outside() -> None:
    checker = Checker()
    checker.feed(report.page([bench()]))
    assert checker.open == []
    assert checker.outside == []


def test_names_from_records_are_escaped() -> None:
    text = report.page([bench()], heading="a < b")
    assert "<script>" not in text
    assert "<base>" not in text
    assert "&lt;base&gt;" in text


def test_same_records_same_bytes() -> None:
    assert report.page([bench()]) == report.page([bench()])


def test_training_curves_are_drawn() -> None:
    history = [{"epoch": e, "validation_loss": 1.0 / e} for e in (1, 2, 3)]
    record = Record(step="train", rows=[Row(label="m", sha256="m")], details={"history": history})
    assert "polyline" in report.page([record])


def test_scatter_places_points_in_order() -> None:
    svg = charts.scatter([charts.Point("a", 1, 1), charts.Point("b", 2, 2, 1.5, 2.5, strong=True)], "x", "y")
    (ax, ay), (bx, by) = [(float(x), float(y)) for x, y in re.findall(r'cx="([\d.]+)" cy="([\d.]+)"', svg)]
    assert ax < bx
    assert ay > by
    assert svg.count('class="bar"') == 1


@pytest.mark.parametrize("values", [[5.0], [0.0, 0.0], [1e-6, 1.0], [-3.0, 4.0], [1e9, 1.1e9]])
def test_axis_holds_its_values_and_ticks(values: list[float]) -> None:
    axis = charts.Axis.over(values, 10, 100)
    assert all(10 <= axis.at(v) <= 100 for v in values)
    assert axis.ticks()
    assert all(10 - 1e-6 <= axis.at(tick) <= 100 + 1e-6 for tick in axis.ticks())


def test_command(tmp_path: Path) -> None:
    bench().save(tmp_path / "b.json")
    result = CliRunner().invoke(main, ["report", str(tmp_path / "b.json"), "-o", str(tmp_path / "r.html")])
    assert result.exit_code == 0
    assert (tmp_path / "r.html").read_text().startswith("<!doctype html>")


def test_sums_are_drawn_as_waterfalls() -> None:
    record = Record(
        step="estimator train", rows=[Row(label="gpt")], details={"parts": {"time, s": {"a": 1.5, "b": 0.5}}}
    )
    drawn = report.page([record])
    assert "gpt: time, s" in drawn and drawn.count('<rect class="strong"') == 3  # two parts and their total
