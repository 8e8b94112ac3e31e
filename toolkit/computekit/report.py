"""One self-contained HTML page over records: the table, charts, and where each number comes from.

No script, no external file, and the same bytes for the same records.
"""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from typing import Any

from . import charts, tables
from .contracts import Column
from .records import Record

_STYLE = """
:root { color-scheme: light dark; --ink: #1c2330; --paper: #fff; --line: #d6dae1; --soft: #f3f5f8; --accent: #0b63c5; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e8ef; --paper: #14181f; --line: #39414e; --soft: #1d232c; --accent: #6cb0ff; }
}
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 2rem auto;
       max-width: 76rem; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.2rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem; }
th, td { padding: .35rem .7rem; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { background: var(--soft); text-align: left; } td b { color: var(--accent); }
ul { padding-left: 1.2rem; } li { margin: .2rem 0; } .small { font-size: .85rem; overflow-wrap: anywhere; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(22rem, 1fr)); gap: 1.5rem; }
svg { width: 100%; height: auto; font: 12px system-ui, sans-serif; }
svg text { fill: var(--ink); } .axis { stroke: var(--ink); } .grid { stroke: var(--line); } .bar { stroke: var(--ink); }
.strong { fill: var(--accent); stroke: var(--accent); } .weak { fill: none; stroke: var(--accent); stroke-width: 1.5; }
polyline { fill: none; stroke-width: 2; }
.s0 { stroke: #0b63c5; } .s1 { stroke: #d4652f; } .s2 { stroke: #2f9461; } .s3 { stroke: #8a55c9; }
details { margin: .4rem 0; } summary { cursor: pointer; }
pre { overflow-x: auto; background: var(--soft); padding: .7rem; }
"""


def page(records: Sequence[Record], heading: str = "computekit report") -> str:
    """The whole page as text."""
    table = tables.build(records)
    notes = "".join(f"<li>{html.escape(note)}</li>" for note in table.notes)
    drawn = [chart for chart in (_tradeoff(table), _training(records), *_parts(records)) if chart]
    parts = [
        f"<h1>{html.escape(heading)}</h1>",
        f'<div class="wide">{table.render("html")}</div>',
        "<p>Bold marks the best value of a column; Pareto says whether no other model is at least as good in accuracy, "
        "latency and cost, and better in one.</p>",
        f"<ul>{notes}</ul>",
        f'<h2>Charts</h2><div class="charts">{"".join(drawn)}</div>' if drawn else "",
        "<h2>Where the numbers come from</h2>",
        *(_provenance(record) for record in records),
    ]
    body = "\n".join(part for part in parts if part)
    return (
        '<!doctype html>\n<html lang="en">\n<head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(heading)}</title>\n<style>{_STYLE}</style></head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def _tradeoff(table: tables.Table) -> str | None:
    """Quality against latency, where the table has both; Pareto-optimal models are filled."""
    by_key = {column.key: column for column in table.columns}
    quality = next((by_key[key] for key in ("accuracy", "perplexity") if key in by_key), None)
    latency = by_key.get("latency_s")
    if quality is None or latency is None:
        return None
    points = []
    for row in table.rows:
        x, y = row.value(latency.key), row.value(quality.key)
        if x is None or y is None:
            continue
        low, high = row.quantities[quality.key].interval or (None, None)
        ends = [None if end is None else end / quality.scale for end in (low, high)]
        points.append(
            charts.Point(row.label, x / latency.scale, y / quality.scale, ends[0], ends[1], row.pareto is True)
        )
    if len(points) < 2:
        return None
    return charts.scatter(points, tables.title(latency), tables.title(quality))


def _training(records: Sequence[Record]) -> str | None:
    """Validation loss over epochs of every record that kept its history."""
    series = {}
    for record in records:
        history = record.details.get("history")
        if not isinstance(history, list) or not record.rows:
            continue
        points = [
            (float(entry["epoch"]), float(entry["validation_loss"]))
            for entry in history
            if isinstance(entry, dict) and entry.get("epoch") is not None and entry.get("validation_loss") is not None
        ]
        if len(points) > 1:
            series[record.rows[0].label] = points
    return charts.lines(series, "epoch", "validation loss") if series else None


def _parts(records: Sequence[Record]) -> list[str]:
    """A waterfall of every sum whose parts a record keeps: ``details["parts"]`` is {title: {part: value}}."""
    drawn = []
    for record in records:
        sums = record.details.get("parts")
        if not isinstance(sums, dict) or not record.rows:
            continue
        for name, parts in sums.items():
            shown = {key: float(value) for key, value in parts.items() if value}
            if shown:
                drawn.append(charts.waterfall(shown, f"{record.rows[0].label}: {name}"))
    return drawn


def _provenance(record: Record) -> str:
    """One record, folded: what was asked, of which files, where, with which versions; then its own tables."""
    label = record.rows[0].label if len(record.rows) == 1 else f"{len(record.rows)} models"
    facts: dict[str, Any] = {
        "options": record.options,
        "inputs": {item.path: item.sha256 for item in record.inputs},
        "output": {record.output.path: record.output.sha256} if record.output else None,
        "seed": record.seed,
        "device": record.device.model_dump(exclude_none=True) if record.device else None,
        "versions": record.versions,
        "plugins": [plugin.model_dump(exclude_none=True) for plugin in record.plugins],
    }
    rows = "".join(
        f"<tr><th>{html.escape(name)}</th><td class='small'>{html.escape(json.dumps(value))}</td></tr>"
        for name, value in facts.items()
        if value not in (None, {}, [])
    )
    own = "".join(_detail(name, value) for name, value in record.details.items())
    summary = f"<summary>{html.escape(record.step)}: {html.escape(label)}</summary>"
    return f"<details>{summary}<table>{rows}</table>{_numbers(record)}{own}</details>"


def _numbers(record: Record) -> str:
    """Every quantity of the record with its interval and how it was obtained."""
    from tabulate import tabulate

    body = []
    for row in record.rows:
        for key, quantity in row.quantities.items():
            text = tables.cell(quantity, Column(key, key, quantity.unit, digits=4), unit=True)
            about = quantity.how if quantity.value is not None else f"unknown: {quantity.reason}"
            samples = f"{len(quantity.samples)} samples" if quantity.samples else ""
            body.append([row.label, key, text, "; ".join(x for x in (about, quantity.method or "", samples) if x)])
    if not body:
        return ""
    return str(tabulate(body, ["model", "quantity", "value", "how"], tablefmt="html", disable_numparse=True))


def _detail(name: str, value: Any) -> str:
    """A detail as a table where it is a list of records, else as JSON."""
    from tabulate import tabulate

    heading = f"<h3>{html.escape(name)}</h3>"
    if isinstance(value, list) and value and all(isinstance(entry, dict) for entry in value):
        return heading + f'<div class="wide">{tabulate(value, headers="keys", tablefmt="html")}</div>'
    return heading + f"<pre>{html.escape(json.dumps(value, indent=1)[:20000])}</pre>"
