"""Hardware, prices and carbon: data files with a source in each row, and the rows that plugins add.

    >>> find_hardware("NVIDIA H100 80GB HBM3").peak_flops["bf16"]      # what torch.cuda.get_device_name() prints
    989400000000000.0
    >>> find_instance("aws/g5.xlarge").on_demand_usd_per_hour
    1.006

A name that is not in the catalog is refused with the nearest ones; nothing is ever assumed. A plugin's row replaces
the shipped row of the same name, which is how a negotiated price gets in.
"""

from __future__ import annotations

from .accelerators import NoPeak, find_hardware, hardware
from .carbon import CarbonIntensity, carbon_intensities, find_carbon_intensity
from .instances import STALE_AFTER_DAYS, doubts, find_instance, is_stale, prices
from .processors import Processor, find_processor

__all__ = [
    "STALE_AFTER_DAYS",
    "CarbonIntensity",
    "NoPeak",
    "Processor",
    "carbon_intensities",
    "doubts",
    "find_carbon_intensity",
    "find_hardware",
    "find_instance",
    "find_processor",
    "hardware",
    "is_stale",
    "prices",
]
