"""Tables over records: rows joined by model, numbers with units, the best and the Pareto-optimal marked.

Pure views: every number comes from a record, nothing is computed that a record does not hold. Raw values go to csv and
json in base units; the other formats are for people.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from . import host
from .contracts import Column
from .errors import UnknownName
from .records import Quantity, Record, Row

COLUMNS: tuple[Column, ...] = (
    Column("parameters", "parameters", order=10, better="lower"),
    Column("file_bytes", "file size", "MB", 1e6, order=11, better="lower"),
    Column("train_flops", "training compute", "TFLOP", 1e12, order=60, better="lower"),
)


@dataclass
class TableRow:
    """One model (or other subject) with everything that the records say about it."""

    label: str
    sha256: str | None
    quantities: dict[str, Quantity] = field(default_factory=dict)
    pareto: bool | None = None

    def add(self, quantities: dict[str, Quantity]) -> None:
        """Take over quantities; later records win, but a known value is never replaced by an unknown one."""
        for key, quantity in quantities.items():
            if quantity.value is not None or self.quantities.get(key) is None:
                self.quantities[key] = quantity

    def value(self, key: str) -> float | None:
        """The number under ``key``, if there is one."""
        quantity = self.quantities.get(key)
        return float(quantity.value) if quantity and isinstance(quantity.value, (int, float)) else None


@dataclass
class Table:
    """Rows and columns chosen from records, and the notes a reader needs."""

    rows: list[TableRow]
    columns: list[Column]
    notes: list[str]

    def render(self, fmt: str = "github", best: bool = True) -> str:
        """The table as text, ending with a newline: github, plain, csv, json, latex or html.

        Notes follow in github and plain; the page that holds an html or latex table prints `notes` itself.
        """
        if fmt == "json":
            return json.dumps([_plain_row(row) for row in self.rows], indent=2) + "\n"
        if fmt == "csv":
            return self._csv()
        from tabulate import tabulate

        paretos = any(row.pareto is not None for row in self.rows)
        header = ["model", *(_escape(title(c), fmt) for c in self.columns)] + (["Pareto"] if paretos else [])
        mark = _MARKS[fmt]
        winners = {c.key: self.best(c) for c in self.columns} if best else {}
        body = []
        for row in self.rows:
            cells = [_escape(row.label, fmt)]
            for column in self.columns:
                text = _escape(cell(row.quantities.get(column.key), column), fmt)
                cells.append(mark.format(text) if row.label in winners.get(column.key, ()) else text)
            if paretos:
                cells.append({True: "yes", False: "no", None: ""}[row.pareto])
            body.append(cells)
        if fmt in ("html", "latex"):  # cells are escaped above, so that the marks survive
            fmt = {"html": "unsafehtml", "latex": "latex_raw"}[fmt]
        aligns = ["left", *["right"] * len(self.columns)] + (["center"] if paretos else [])
        text = tabulate(body, header, tablefmt=fmt, colalign=aligns, disable_numparse=True)
        if fmt in ("github", "plain") and self.notes:
            text += "\n\n" + "\n".join(f"- {note}" if fmt == "github" else note for note in self.notes)
        return text + "\n"

    def best(self, column: Column) -> set[str]:
        """Labels of the rows with the best value of ``column``; empty if all are equal or only one is known."""
        values = {row.label: value for row in self.rows if (value := row.value(column.key)) is not None}
        if column.better is None or len(set(values.values())) < 2:
            return set()
        winner = (min if column.better == "lower" else max)(values.values())
        return {label for label, value in values.items() if value == winner}

    def _csv(self) -> str:
        stream = io.StringIO()
        writer = csv.writer(stream, lineterminator="\n")
        keys = [column.key for column in self.columns]
        ranged = [k for k in keys if any((q := row.quantities.get(k)) and q.interval for row in self.rows)]
        writer.writerow(["model", *keys, *(f"{k}_{end}" for k in ranged for end in ("low", "high")), "pareto"])
        for row in self.rows:
            values: list[Any] = [_raw(row.quantities.get(key)) for key in keys]
            for key in ranged:
                quantity = row.quantities.get(key)
                values += list(quantity.interval) if quantity and quantity.interval else ["", ""]
            pareto = "" if row.pareto is None else str(row.pareto).lower()
            writer.writerow([row.label, *values, pareto])
        return stream.getvalue()


def build(records: Sequence[Record], columns: Iterable[str] | None = None, sort: str | None = None) -> Table:
    """Join ``records`` into one table.

    ``columns`` are quantity keys (default: every described column that some row has and that is no detail). ``sort``
    is a key, ``KEY:desc`` for descending. Rows are the models (joined by content hash), in order of first appearance.

    Raises:
        UnknownName: a column or sort key that no record has.
    """
    rows = _join(records)
    present = {key for row in rows for key in row.quantities}
    described = {column.key: column for column in host.current().columns}
    if columns is None:
        chosen = [column for key, column in described.items() if key in present and not column.detail]
    else:
        chosen = [described.get(key) or Column(key, key, _unit(rows, key)) for key in columns]
        for column in chosen:
            if column.key not in present and column.key not in described:
                raise UnknownName("column", column.key, present | set(described))
    if sort:
        key, _, direction = sort.partition(":")
        if key not in present and key != "model":
            raise UnknownName("sort key", key, present | {"model"})
        rows = _sorted(rows, key, direction == "desc")
    _mark_pareto(rows, [c for c in described.values() if c.pareto and c.better])
    return Table(rows, chosen, [*_gaps(rows, chosen), *_provenance(records)])


def summary(record: Record) -> str:
    """A record's quantities for a person: one line each, or one table if it has several subjects."""
    if len(record.rows) > 1:
        return build([record], _keys(record.rows)).render("plain", best=False).rstrip()
    from tabulate import tabulate

    described = {column.key: column for column in host.current().columns}
    lines = []
    for row in record.rows:
        for key, quantity in row.quantities.items():
            column = described.get(key) or Column(key, key, _shown(quantity.unit))
            text = cell(quantity, column, unit=True) or f"unknown: {quantity.reason}"
            lines.append((column.title, text, quantity.how if quantity.value is not None else ""))
    return tabulate(lines, tablefmt="plain", disable_numparse=True)


def title(column: Column) -> str:
    """The column's heading with its unit."""
    return f"{column.title} ({column.unit})" if column.unit else column.title


def cell(quantity: Quantity | None, column: Column, unit: bool = False) -> str:
    """A quantity as a table shows it: scaled, rounded to sensible digits, with its interval if the column says so."""
    if quantity is None or quantity.value is None:
        return ""
    if isinstance(quantity.value, str):
        return quantity.value
    if isinstance(quantity.value, int) and column.scale == 1.0:
        text = f"{quantity.value:,}"
    else:
        text = number(quantity.value / column.scale, column.digits)
    if quantity.interval and (column.interval or unit):
        low, high = (number(end / column.scale, column.digits) for end in quantity.interval)
        text += f" [{low}, {high}]"
    return f"{text} {column.unit}".rstrip() if unit else text


def number(value: float, digits: int = 3) -> str:
    """``value`` to ``digits`` significant digits; whole digits are never cut, tiny and huge values get an exponent."""
    if value == 0:
        return "0"
    size = abs(value)
    if size >= 1e9 or size < 1e-4:
        return f"{value:.{digits - 1}e}"
    whole = len(str(int(size))) if size >= 1 else 0
    if whole:
        return f"{value:,.{max(digits - whole, 0)}f}"
    return f"{value:#.{digits}g}"


# -- joining -----------------------------------------------------------------------------------------------------------


def _join(records: Sequence[Record]) -> list[TableRow]:
    """One row per model. Several names for the same bytes (two variants that came out equal) give a row each."""
    entries = [row for record in records for row in record.rows]
    names = _names(records)
    rows: dict[tuple[str | None, str], TableRow] = {}
    by_label: dict[str, list[TableRow]] = {}
    for entry in sorted(entries, key=lambda e: e.sha256 is None):  # rows without a hash join by label, afterwards
        if entry.sha256 is None:
            targets = by_label.get(entry.label) or [rows.setdefault((None, entry.label), TableRow(entry.label, None))]
        else:
            labels = names[entry.sha256]
            chosen = [entry.label] if entry.label in labels else labels
            targets = [rows.setdefault((entry.sha256, n), TableRow(n, entry.sha256)) for n in chosen]
            for target in targets:
                if target not in by_label.setdefault(target.label, []):
                    by_label[target.label].append(target)
        for target in targets:
            target.add(entry.quantities)
    return list(rows.values())


def _names(records: Sequence[Record]) -> dict[str, list[str]]:
    """The labels under which each content hash is shown: those of the last record that names it most often.

    Files that came out equal count as named together: each record of a step that made one stands for a model.
    """
    names: dict[str, list[str]] = {}
    for record in records:
        for row in record.rows:
            made = row.sha256 is not None and record.output is not None and record.output.sha256 == row.sha256
            if made and row.label not in names.setdefault(row.sha256 or "", []):
                names[row.sha256 or ""].append(row.label)
    for record in records:
        here: dict[str, list[str]] = {}
        for row in record.rows:
            if row.sha256 is not None and row.label not in here.setdefault(row.sha256, []):
                here[row.sha256].append(row.label)
        for sha, labels in here.items():
            if len(labels) >= len(names.get(sha, [])):
                names[sha] = labels
    return names


def _sorted(rows: list[TableRow], key: str, descending: bool) -> list[TableRow]:
    """Rows by ``key``; rows without a value come last either way."""
    if key == "model":
        return sorted(rows, key=lambda row: row.label, reverse=descending)
    known = [row for row in rows if row.value(key) is not None]
    known.sort(key=lambda row: row.value(key) or 0.0, reverse=descending)
    return known + [row for row in rows if row.value(key) is None]


def _mark_pareto(rows: list[TableRow], columns: list[Column]) -> None:
    """Say of each row whether no other row is at least as good in all ``columns`` and better in one."""
    used = [c for c in columns if any(row.value(c.key) is not None for row in rows)]
    scores = {}
    for index, row in enumerate(rows):
        values = [row.value(c.key) for c in used]
        if all(value is not None for value in values):
            scores[index] = [
                v if c.better == "higher" else -v for c, v in zip(used, values, strict=True) if v is not None
            ]
    if len(used) < 2 or len(scores) < 2:
        return
    for index, mine in scores.items():
        rows[index].pareto = not any(
            all(o >= m for o, m in zip(other, mine, strict=True)) and other != mine for other in scores.values()
        )


def _gaps(rows: list[TableRow], columns: list[Column]) -> list[str]:
    """Why cells are blank: one note per column and reason, and one for all that no record tells."""
    notes = []
    untold: list[str] = []
    for column in columns:
        reasons: dict[str, list[str]] = {}
        for row in rows:
            quantity = row.quantities.get(column.key)
            if quantity is None and column.title not in untold:
                untold.append(column.title)
            elif quantity is not None and quantity.value is None:
                reasons.setdefault(quantity.reason or "", []).append(row.label)
        for reason, labels in reasons.items():
            whose = "" if len(labels) == len(rows) else f" of {', '.join(labels)}"
            notes.append(f"blank {column.title}{whose}: {reason}")
    if untold:
        notes.append(f"other blanks ({', '.join(untold)}): none of the given records tells")
    return notes


def _provenance(records: Sequence[Record]) -> list[str]:
    """Which step ran on which device, and the notes of the records, each once."""
    places: dict[str, list[str]] = {}
    notes: list[str] = []
    for record in records:
        if record.device is not None:
            device = record.device
            threads = f", {device.threads} thread{'s' * (device.threads != 1)}" if device.threads else ""
            steps = places.setdefault(f"{device.kind} ({device.name}{threads})", [])
            if record.step not in steps:
                steps.append(record.step)
        notes += [note for note in record.notes if note not in notes]
    return [f"{', '.join(steps)}: on {place}" for place, steps in places.items()] + _machines(records) + notes


def _machines(records: Sequence[Record]) -> list[str]:
    """A warning where one measured quantity comes from several devices: its values cannot be compared directly."""
    places: dict[str, dict[tuple[str, str, int | None], None]] = {}
    for record in records:
        if record.device is None:
            continue
        device = (record.device.kind, record.device.name, record.device.threads)
        for key, quantity in ((key, q) for row in record.rows for key, q in row.quantities.items()):
            if quantity.how == "measured" and quantity.unit != "B":
                places.setdefault(key, {})[device] = None
    apart = [key for key, devices in places.items() if len(devices) > 1]
    if not apart:
        return []
    first, second = list(places[apart[0]])[:2]
    parts = zip(("kind of device", "device", "number of threads"), first, second, strict=True)
    why = ", ".join(f"{what} ({a} and {b})" for what, a, b in parts if a != b)
    return [f"not to be compared directly, since they were measured with a different {why}: {', '.join(apart)}"]


# -- small things ------------------------------------------------------------------------------------------------------

_MARKS = {"github": "**{}**", "plain": "{}*", "latex": r"\textbf{{{}}}", "html": "<b>{}</b>"}
_LATEX = str.maketrans(
    {c: rf"\{c}" for c in "&%$#_{}"} | {"~": r"\textasciitilde{}", "^": r"\^{}", "\\": r"\textbackslash{}"}
)


def _escape(text: str, fmt: str) -> str:
    if fmt == "html":
        import html

        return html.escape(text)
    if fmt == "latex":
        return text.translate(_LATEX)
    return text.replace("|", r"\|") if fmt == "github" else text


def _raw(quantity: Quantity | None) -> float | int | str:
    return "" if quantity is None or quantity.value is None else quantity.value


def _plain_row(row: TableRow) -> dict[str, Any]:
    return {
        "model": row.label,
        "sha256": row.sha256,
        "pareto": row.pareto,
        "quantities": {k: q.model_dump(exclude_none=True, exclude={"samples"}) | {"value": q.value}
                       for k, q in row.quantities.items()},
    }  # fmt: skip


def _keys(rows: Iterable[Row]) -> list[str]:
    return list(dict.fromkeys(key for row in rows for key in row.quantities))


def _unit(rows: list[TableRow], key: str) -> str:
    return next((_shown(row.quantities[key].unit) for row in rows if key in row.quantities), "")


def _shown(unit: str) -> str:
    """The unit as a reader wants it: none for pure numbers, which records may give the unit "1"."""
    return "" if unit == "1" else unit
