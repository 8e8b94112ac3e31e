"""Published runs: the rows of a CSV."""

from __future__ import annotations

import csv
import math
import re
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from computekit import FileProblem

from .errors import CannotPredict

COLUMNS = (
    "id", "kind", "model", "layers", "hidden", "heads", "kv_heads", "ffn", "ffn_gated", "vocab", "seq", "experts",
    "topk", "hardware", "num_gpus", "tp", "pp", "cp", "ep", "dp", "vp", "microbatch", "global_batch", "precision",
    "recompute", "sharding", "seq_parallel", "infer_batch", "in_len", "out_len", "tokens", "value", "unit",
    "definition", "source", "confidence",
)  # fmt: skip

_RANKS = ("num_gpus", "tp", "pp", "cp", "ep", "dp")
_SHARED = (
    *_RANKS, "layers", "hidden", "heads", "kv_heads", "ffn", "ffn_gated", "vocab", "seq", "experts", "topk", "vp",
    "microbatch", "global_batch", "recompute", "sharding", "seq_parallel",
)  # fmt: skip
"""Columns that rows of one job share."""

_MISSING = ("nan", "n/a", "na", "null", "unknown", "-", "--", "?")
_LENGTHS = ("seq", "in_len", "out_len")
REQUIRED = ("id", "kind", "value", "unit")


@dataclass(frozen=True)
class Run:
    """One published figure."""

    cells: dict[str, str]

    @property
    def id(self) -> str:
        return self.cells["id"]

    @property
    def kind(self) -> str:
        return self.cells["kind"]

    @property
    def family(self) -> str:
        """The part of the id that names the table: ``mlm21_t1``, ``bloomq``, ``foundry``."""
        first, *rest = self.id.split("_")
        return f"{first}_{rest[0]}" if rest and re.fullmatch(r"t\d+", rest[0]) else first

    @property
    def value(self) -> float:
        """The published value; raises CannotPredict where it is no finite number above 0."""
        value = self.number("value")
        if value is None or value <= 0:
            raise CannotPredict(f"value {self.cells['value']!r} is no number to compare with")
        return value

    def text(self, name: str) -> str:
        """A cell, stripped; empty if the column is missing or the cell says so ("n/a", "-")."""
        cell = (self.cells.get(name) or "").strip()
        return "" if cell.lower() in _MISSING else cell

    def number(self, name: str) -> float | None:
        """A cell as a finite number, which may have thousands separators and, if it is a length, a "k" of 1,024; None
        if it is empty or no number."""
        word = self.text(name)
        if re.fullmatch(r"\d{1,3}(,\d{3})+(\.\d+)?", word):
            word = word.replace(",", "")
        length = re.fullmatch(r"(\d+) ?[kK]", word) if name in _LENGTHS else None
        try:
            value = 1024.0 * int(length[1]) if length else float(word)
        except ValueError:
            return None
        return value if math.isfinite(value) else None

    def whole(self, name: str, default: int | None = None, least: int = 1) -> int:
        """A cell as a whole number of at least ``least``.

        Raises:
            CannotPredict: it is no such number, or it is empty and has no default.
        """
        if not self.text(name):
            if default is None:
                raise CannotPredict(f"{name} is not published")
            return default
        value = self.number(name)
        if value is None or value < least or value % 1:
            raise CannotPredict(f"{name} {self.text(name)!r} is no whole number of at least {least}")
        return int(value)


def load(path: Path | None = None) -> list[Run]:
    """All rows of a CSV with the columns of the shipped table (the default).

    Raises:
        FileProblem: no CSV, or a required column is missing.
    """
    if path is None:
        text = (resources.files(__package__) / "data" / "published_runs.csv").read_text(encoding="utf-8")
        return _parse(text, Path("published_runs.csv"))
    try:
        return _parse(path.read_text(encoding="utf-8-sig"), path)
    except (UnicodeDecodeError, csv.Error, IsADirectoryError) as error:
        raise FileProblem(path, "is not a CSV file", f"it needs the columns {', '.join(REQUIRED)}, ...") from error


def _parse(text: str, path: Path) -> list[Run]:
    lines = text.splitlines()
    head = lines[0] if lines else ""
    reader = csv.DictReader(lines, delimiter=max(",;\t", key=head.count))
    reader.fieldnames = [name.strip().lower() for name in reader.fieldnames or []]
    missing = [name for name in REQUIRED if name not in (reader.fieldnames or [])]
    if missing:
        raise FileProblem(path, f"has no column {', '.join(missing)}", "use the columns of published_runs.csv")
    return _completed([Run({k: v or "" for k, v in cells.items() if k is not None}) for cells in reader])


def _completed(runs: list[Run]) -> list[Run]:
    """Rows of one training job tell it together: what one leaves empty is taken from the others if they agree.

    Rows belong together that have the same family and model and contradict each other in no number of ranks. A row that
    has its devices and its batch tells all that it means to: an empty cell of it says "none".
    """
    groups: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        if run.text("model") and not run.text("infer_batch"):
            groups.setdefault((run.family, run.text("model")), []).append(run)
    completed = {}
    for group in groups.values():
        ranked = [run for run in group if run.text("num_gpus")]
        same = all(_agree(one, other) for one in ranked for other in ranked)
        for run in group if same and len(group) > 1 else []:
            if run.text("num_gpus") and run.text("global_batch"):
                continue
            values = {name: {other.text(name) for other in group} - {""} for name in _SHARED}
            found = {name: next(iter(v)) for name, v in values.items() if len(v) == 1 and not run.text(name)}
            completed[run.id] = Run({**run.cells, **found})
    return [completed.get(run.id, run) for run in runs]


def _agree(one: Run, other: Run) -> bool:
    """Whether no number of ranks is different in both."""
    return all(one.text(n) == other.text(n) or not one.text(n) or not other.text(n) for n in _RANKS)
