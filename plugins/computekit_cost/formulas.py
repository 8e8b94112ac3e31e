"""The arithmetic of cost, each formula on plain numbers with its source. Units are in the names."""

from __future__ import annotations

MILLION = 1e6
SECONDS_PER_HOUR = 3600.0
JOULES_PER_WH = 3600.0


def usd_per_million(usd_per_hour: float, throughput_per_s: float) -> float:
    """Price of a million inferences on a machine that is busy all the time."""
    return usd_per_hour / SECONDS_PER_HOUR / throughput_per_s * MILLION


def wh_per_million(power_w: float, throughput_per_s: float) -> float:
    """Energy of a million inferences at a constant power."""
    return power_w / throughput_per_s * MILLION / JOULES_PER_WH


def energy_wh(power_w: float, hours: float, pue: float = 1.0) -> float:
    """Energy over a time; ``pue`` is the facility's total power over that of its computers (Patterson et al. 2021)."""
    return power_w * hours * pue


def carbon_kg(energy_wh: float, g_per_kwh: float) -> float:
    """Emissions of an amount of energy at a carbon intensity (Lacoste et al. 2019)."""
    return energy_wh / 1e3 * g_per_kwh / 1e3


def device_hours(flops: float, peak_flops: float, utilization: float) -> float:
    """Time of one device at a share (model FLOPs utilisation) of its dense peak."""
    return flops / (peak_flops * utilization) / SECONDS_PER_HOUR
