"""Design power of processors, by the name that the operating system prints."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..errors import UnknownName
from .tables import read

SOURCE = "codecarbon 3.3.2 hardware/cpu_power.csv"


@dataclass(frozen=True)
class Processor:
    """A processor's thermal design power, for the whole package."""

    name: str
    tdp_w: float
    source: str = SOURCE


def find_processor(name: str) -> Processor:
    """The processor called ``name``, as /proc/cpuinfo or a data sheet spells it.

    Raises UnknownName, with the nearest names, for all others, and for names without a model such as "AMD EPYC".
    """
    rows = {_plain(cells["name"]): cells for cells in read("processors.csv")}
    found = rows.get(_plain(name))
    if found is None:
        raise UnknownName("processor", name, [cells["name"] for cells in rows.values()])
    return Processor(found["name"], float(found["tdp_w"]))


def _plain(name: str) -> str:
    """Maker, series and model in lower case: no marks, clock, number of cores or graphics."""
    text = re.sub(r"\((r|tm)\)", " ", name.lower())
    text = re.sub(r"@.*|\bwith .*|\b\d+th gen\b|\b\w+-core\b|\b(cpu|processor|apu)\b", " ", text)
    return " ".join(text.split())
