"""What the host itself contributes, through the same hooks as any plugin."""

from __future__ import annotations

from .contracts import Architecture, Column, Command, Dataset, Hardware, Price
from .hookspecs import hookimpl


@hookimpl
def computekit_commands() -> list[Command]:
    from .commands import doctor, plugins, report, table

    return [Command(c) for c in (plugins.plugins, doctor.doctor, table.table, report.report)]


@hookimpl
def computekit_datasets() -> list[Dataset]:
    from . import datasets

    return list(datasets.BUILTIN)


@hookimpl
def computekit_architectures() -> list[Architecture]:
    from . import zoo

    return list(zoo.BUILTIN)


@hookimpl
def computekit_columns() -> list[Column]:
    from .tables import COLUMNS

    return list(COLUMNS)


@hookimpl
def computekit_hardware() -> list[Hardware]:
    from .catalog.accelerators import shipped

    return shipped()


@hookimpl
def computekit_prices() -> list[Price]:
    from .catalog.instances import shipped

    return shipped()
