"""``computekit table``: records side by side."""

from __future__ import annotations

from pathlib import Path

import click

from .. import options

FORMATS = ("github", "plain", "csv", "json", "latex", "html")


@click.command()
@options.records
@click.option("--format", "fmt", type=click.Choice(FORMATS), default="github", show_default=True, help="Output format.")
@click.option("--columns", help="Quantity keys, comma-separated, in this order.  [default: all described ones]")
@click.option("--sort", metavar="KEY[:desc]", help="Sort rows by a quantity; 'model' sorts by name.")
@click.option("--best/--no-best", default=True, show_default=True, help="Mark the best value of each column.")
@click.option("--output", "-o", type=click.Path(path_type=Path), help="Write to a file instead of standard output.")
@options.common
def table(
    records: tuple[Path, ...], fmt: str, columns: str | None, sort: str | None, best: bool, output: Path | None
) -> None:
    """Put records side by side: one row per model, numbers with units, the Pareto-optimal rows marked.

    Records of the same model (by content) share a row. csv and json hold raw values in base units.

    \b
    Example:
      computekit table model.pt.record.json bench.json
      computekit table *.record.json --format csv --columns file_bytes,accuracy --sort accuracy:desc
    """
    from .. import files, tables
    from .. import records as record_files

    keys = [key.strip() for key in columns.split(",") if key.strip()] if columns else None
    text = tables.build([record_files.load(path) for path in records], keys, sort).render(fmt, best)
    if output is None:
        click.echo(text, nl=False)
    else:
        files.check_spares(output, records)
        files.write_text(output, text)
