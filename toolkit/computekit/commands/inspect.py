"""``computekit inspect``: what a model file holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from .. import options

_SHOWN = 12
_UNITS = ("kB", "MB", "GB", "TB")


@click.command()
@options.model
@click.option("--headers-only", is_flag=True, help="Do not read the tensors' data: no NaN and no duplicates are found.")
@click.option("--all", "everything", is_flag=True, help="Show every tensor, not only the largest.")
@options.as_json
@options.common
@click.pass_context
def inspect(ctx: click.Context, model: Path, headers_only: bool, everything: bool, as_json: bool) -> None:
    """Say what a model file holds: its kind, tensors, number types, ties, optimizer state, and what a pickle would run.

    Nothing in the file is run, so it is safe on files from anywhere. Memory follows the largest tensor, so it works on
    files of any size. The architecture family is a guess from names and shapes.

    \b
    Example:
      computekit inspect model.pt
      computekit inspect --json --headers-only llama.gguf
    """
    import sys

    from tqdm import tqdm

    from .. import files
    from ..models.inspection import inspect as examine

    hidden = headers_only or ctx.meta.get("computekit.quiet", False) or not sys.stderr.isatty()
    with tqdm(total=files.size_bytes(model), unit="B", unit_scale=True, leave=False, disable=hidden) as bar:
        report = examine(model, values=not headers_only, progress=bar.update)
    click.echo(json.dumps(report, indent=2, default=str) if as_json else _text(report, everything))


def _text(report: dict[str, Any], everything: bool) -> str:
    """The report for a person."""
    from tabulate import tabulate

    tensors = report["tensors"]
    mix = ", ".join(f"{name} {_bytes(entry['bytes'])}" for name, entry in report["dtypes"].items())
    lines = [
        ("kind", report["format"]),
        ("size", _bytes(report["file_bytes"])),
        ("weights", f"{report['parameters']:,} in {len(tensors)} tensors: {mix}"),
    ]
    if len(report["models"]) > 1:
        lines.append(("models", ", ".join(name.rstrip(".") or "(top)" for name in report["models"])))
    for name in report["copies"]:
        lines.append(("copy", f"{name.rstrip('.')}: the same model once more, not counted among the weights"))
    if report["family"]:
        lines.append(("looks like", f"{report['family'][0]} (a guess: {report['family'][1]})"))
    lines += [("tied", ", ".join(names)) for names in report["tied"]]
    lines += [("equal content", ", ".join(names)) for names in report["duplicates"] or []]
    if report["non_finite"] is None:
        lines.append(("values", "not read"))
    for name, counts in (report["non_finite"] or {}).items():
        lines.append(("NOT FINITE", f"{name}: {counts['nan']} NaN, {counts['inf']} infinite"))
    for entry in report["other_content"]:
        share = f"{_bytes(entry['bytes'])}, {entry['bytes'] / report['file_bytes']:.0%} of the file"
        what = "optimizer state" if entry["optimizer"] else entry["value"]
        lines.append(("besides", f"{entry['key']}: {what}" + (f" ({share})" if entry["bytes"] else "")))
    if report["unsafe_globals"]:
        lines.append(("would import", ", ".join(report["unsafe_globals"])))
    runtime = (report["metadata"].get("compression") or {}).get("runtime")
    if isinstance(runtime, dict):
        beside = ", ".join(map(str, runtime.get("files") or ()))
        lines.append(("run by", f"{runtime.get('name')}" + (f", from {beside}" if beside else "")))
    if report["metadata"]:
        lines.append(("computekit", json.dumps(report["metadata"], default=str)[:200]))
    for key, value in list(report["about"].items())[:_SHOWN]:
        lines.append((key, str(value)[:80]))
    lines += [("can do", text) for text in report["can"]]
    listed = tensors if everything else sorted(tensors, key=lambda entry: -entry["bytes"])[:_SHOWN]
    rows = [
        (t["name"], "x".join(map(str, t["shape"])), t.get("encoding", t["dtype"]), _bytes(t["bytes"])) for t in listed
    ]
    table = tabulate(rows, ["tensor", "shape", "type", "size"], colalign=("left", "right", "left", "right"))
    hidden = len(tensors) - len(listed)
    rest = f"\nand {hidden} smaller tensors (--all shows them)" if hidden else ""
    return f"{tabulate(lines, tablefmt='plain')}\n\n{table}{rest}"


def _bytes(count: int) -> str:
    """Decimal units, as file managers count."""
    if count < 1000:
        return f"{count} B"
    power = min((len(str(count)) - 1) // 3, len(_UNITS))
    return f"{count / 1000**power:.3g} {_UNITS[power - 1]}"
