"""What the host itself contributes, through the same hooks as any plugin."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .hookspecs import hookimpl
from .verbs import Command, Step

if TYPE_CHECKING:
    from .contracts import Architecture, Column, Dataset, Hardware, ModelFormat, Price


@hookimpl
def computekit_commands() -> list[Command]:
    from .commands import completion, doctor, inspect, plugins, report, table

    commands = (completion.completion, doctor.doctor, inspect.inspect, plugins.plugins, report.report, table.table)
    return [Command(command) for command in commands]


@hookimpl
def computekit_steps() -> list[Step]:
    from .commands.convert import convert
    from .commands.dequantize import dequantize

    return [
        Step("convert", convert, takes="model", gives="model"),
        Step("dequantize", dequantize, takes="model", gives="model"),
    ]


@hookimpl
def computekit_datasets() -> list[Dataset]:
    from . import datasets

    return list(datasets.BUILTIN)


@hookimpl
def computekit_architectures() -> list[Architecture]:
    from . import zoo
    from .models import kinds

    return [*zoo.BUILTIN, *kinds.ARCHITECTURES]


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


@hookimpl
def computekit_model_formats() -> list[ModelFormat]:
    from .models import kinds

    return list(kinds.BUILTIN)
