"""``computekit report``: one HTML page over records."""

from __future__ import annotations

from pathlib import Path

import click

from .. import options


@click.command()
@options.records
@click.option("--output", "-o", type=click.Path(path_type=Path), required=True, help="The HTML file to write.")
@click.option("--title", default="computekit report", show_default=True, help="Heading of the page.")
@options.common
def report(records: tuple[Path, ...], output: Path, title: str) -> None:
    """Write one self-contained HTML page: the table, charts, and where each number comes from.

    \b
    Example:
      computekit report results/*.json -o report.html
    """
    from .. import files, report
    from .. import records as record_files

    files.check_writable(output)
    files.check_spares(output, records)
    files.write_text(output, report.page([record_files.load(path) for path in records], title))
    if not click.get_current_context().meta.get("computekit.quiet", False):
        click.echo(f"wrote {output}", err=True)
