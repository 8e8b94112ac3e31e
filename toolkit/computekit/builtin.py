"""What the host itself contributes, through the same hooks as any plugin."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import hookspecs
from .hookspecs import implements
from .verbs import Command, LazyCommand, Step

if TYPE_CHECKING:
    from .contracts import Architecture, Column, Dataset, Hardware, ModelFormat, Price


_COMMANDS = {
    "completion": "Print the script that gives a shell completion.",
    "doctor": "Show versions, devices, extras and plugins, and how to mend what is missing.",
    "inspect": "Say what a model file holds, and what a pickle would run.",
    "plugins": "List the plugins and what they bring; make a new one.",
    "report": "Write one self-contained HTML page: the table, charts, and where each number comes from.",
    "table": "Put records side by side, with intervals, best values and Pareto-optimal rows.",
}
_STEPS = {
    "convert": "Write a model file as another kind.",
    "dequantize": "Turn the compressed weights of a model file back into floats.",
}


def _lazy(name: str, summary: str) -> LazyCommand:
    return LazyCommand(name, f"{__package__}.commands.{name}:{name}", summary)


@implements(hookspecs.computekit_commands)
def computekit_commands() -> list[Command]:
    return [Command(_lazy(name, summary)) for name, summary in _COMMANDS.items()]


@implements(hookspecs.computekit_steps)
def computekit_steps() -> list[Step]:
    return [
        Step(name, _lazy(name, summary), takes="model", gives="model", keeps_kind=name == "dequantize")
        for name, summary in _STEPS.items()
    ]


@implements(hookspecs.computekit_datasets)
def computekit_datasets() -> list[Dataset]:
    from . import datasets

    return list(datasets.BUILTIN)


@implements(hookspecs.computekit_architectures)
def computekit_architectures() -> list[Architecture]:
    from . import zoo
    from .models import kinds

    return [*zoo.BUILTIN, *kinds.ARCHITECTURES]


@implements(hookspecs.computekit_columns)
def computekit_columns() -> list[Column]:
    from .tables import COLUMNS

    return list(COLUMNS)


@implements(hookspecs.computekit_hardware)
def computekit_hardware() -> list[Hardware]:
    from .catalog.accelerators import shipped

    return shipped()


@implements(hookspecs.computekit_prices)
def computekit_prices() -> list[Price]:
    from .catalog.instances import shipped

    return shipped()


@implements(hookspecs.computekit_model_formats)
def computekit_model_formats() -> list[ModelFormat]:
    from .models import kinds

    return list(kinds.BUILTIN)
