"""The record: what a step was asked, what came out, and how far to trust it.

One JSON document per output, ``OUTPUT.record.json`` beside a model, or the output itself for a step that gives a
record. Field names carry the unit (``latency_s``, ``file_bytes``, ``price_usd_per_hour``). A value that is not known
is ``None`` with a ``reason``; it is never 0 and never a guess.

Two runs with the same inputs, options, seed, versions and device give the same record except for `Record.timing` and
for what was measured (`Record.reproducible` drops it).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from . import files
from .errors import FileProblem

SCHEMA_VERSION = 1

How = Literal["measured", "computed", "catalog", "given"]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class Quantity(_Strict):
    """One number: its value, its unit and where it comes from."""

    value: float | int | str | None = None
    unit: str = ""
    how: How = "computed"
    interval: tuple[float, float] | None = Field(default=None, description="confidence interval, in `unit`")
    confidence: float | None = Field(default=None, description="confidence level of `interval`, e.g. 0.95")
    method: str | None = Field(default=None, description="how the value or its interval was obtained; its source")
    samples: list[float] | None = Field(default=None, description="raw measurements, in `unit`, in the order taken")
    reason: str | None = Field(default=None, description="why `value` is None")

    def model_post_init(self, _context: Any) -> None:
        if self.value is None and not self.reason:
            raise ValueError("a quantity without a value needs a reason")


class FileRef(_Strict):
    """A file that went in or came out, known by its content."""

    path: str
    sha256: str
    bytes: int

    @classmethod
    def of(cls, path: str | Path) -> FileRef:
        """Hash ``path`` (a file or folder) now."""
        return cls(path=str(path), sha256=files.sha256(path), bytes=files.size_bytes(path))


class Row(_Strict):
    """Quantities of one subject: a model in most records. ``label`` is the name a table shows."""

    label: str
    sha256: str | None = Field(default=None, description="content hash of the model file that the row is about")
    quantities: dict[str, Quantity] = Field(default_factory=dict)


class Device(_Strict):
    """Where it ran."""

    kind: str = Field(description="cpu, cuda, mps, ...")
    name: str = Field(description="the processor's or card's own name")
    threads: int | None = None
    memory_bytes: int | None = None


class Plugin(_Strict):
    """A plugin that took part."""

    name: str
    distribution: str
    version: str
    sha256: str | None = Field(default=None, description="content hash of the plugin's files")


class Lineage(_Strict):
    """An earlier step that this output descends from, oldest first; ``train_flops`` is that step's own training."""

    step: str
    sha256: str
    train_flops: float | None = None


class Record(_Strict):
    """What one run of one step leaves behind."""

    schema_version: int = SCHEMA_VERSION
    step: str
    options: dict[str, Any] = Field(default_factory=dict, description="what was asked, defaults included")
    inputs: list[FileRef] = Field(default_factory=list)
    output: FileRef | None = None
    rows: list[Row] = Field(default_factory=list)
    details: dict[str, Any] = Field(default_factory=dict, description="tables of the step's own, e.g. per layer")
    notes: list[str] = Field(default_factory=list, description="what a reader must know to judge the numbers")
    lineage: list[Lineage] = Field(default_factory=list)
    seed: int | None = None
    device: Device | None = None
    versions: dict[str, str] = Field(default_factory=dict)
    plugins: list[Plugin] = Field(default_factory=list)
    timing: dict[str, float | str] = Field(default_factory=dict, description="when, and how long it took")

    def to_json(self) -> str:
        """The document, keys in schema order, one trailing newline."""
        return self.model_dump_json(indent=2, exclude_none=True) + "\n"

    def save(self, path: str | Path) -> None:
        """Write the document atomically."""
        files.write_text(path, self.to_json())

    def reproducible(self) -> dict[str, Any]:
        """The part that two runs of the same step on the same device share byte for byte.

        A step keeps what it measured in quantities with how="measured" and in ``details["measured"]``.
        """
        data = self.model_dump(exclude={"timing"}, exclude_none=True)
        data["details"].pop("measured", None)
        for row in data["rows"]:
            row["quantities"] = {k: q for k, q in row["quantities"].items() if q["how"] != "measured"}
        return data


def beside(model: str | Path) -> Path:
    """Where the record of a model file lies: ``OUTPUT.record.json``."""
    model = Path(model)
    return model.with_name(model.name + ".record.json")


def load(path: str | Path) -> Record:
    """Read a record; raises FileProblem if the file is no record or comes from a newer computekit."""
    path = Path(path)
    if path.is_dir():
        raise FileProblem(path, "is a folder", "give record files")
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FileProblem(path, "no such file") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        hint = f"did you mean {beside(path)}?" if beside(path).exists() else "records are JSON documents"
        raise FileProblem(path, "is not a record", hint) from error
    if not isinstance(data, dict) or "schema_version" not in data or "step" not in data:
        raise FileProblem(path, "is JSON but not a computekit record", "it lacks schema_version or step")
    version = data["schema_version"]
    if not isinstance(version, int) or isinstance(version, bool):
        raise FileProblem(path, f"has schema_version {version!r}, which is not a whole number")
    if version > SCHEMA_VERSION:
        raise FileProblem(
            path,
            f"is a record of schema {version}; this computekit reads up to {SCHEMA_VERSION}",
            "upgrade computekit",
        )
    try:
        return Record.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise FileProblem(path, f"is a damaged record: {where}: {first['msg']}") from error


def complaint(error: ValueError) -> str:
    """What is wrong with a record or a quantity, in one line; pydantic says it in many, once for each type it tried."""
    if not isinstance(error, ValidationError):
        return str(error)
    return ", ".join(
        dict.fromkeys(
            f"{problem['loc'][0] if problem['loc'] else ''} {problem['msg']}".strip() for problem in error.errors()
        )
    )
