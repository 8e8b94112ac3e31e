"""The peak rate that a utilization is a share of."""

from __future__ import annotations

from typing import Any

import click

import computekit


class PeakRate(click.ParamType[float | str]):
    """FLOP/s as a number, or else the name of a device."""

    name = "rate or device"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float | str:
        try:
            rate = float(value)
        except ValueError:
            return str(value)
        if not 0 < rate < float("inf"):
            self.fail(f"{value} is no rate", param, ctx)
        return rate


def peak_flops(peak: float | str, precision: str) -> float:
    """FLOP/s of ``peak``: itself, or the dense peak in ``precision`` of the catalog's device of that name.

    Raises:
        ComputekitError: the catalog has no such device, or no peak of it in that precision.
    """
    from computekit import catalog

    if isinstance(peak, float):
        return peak
    hardware = catalog.find_hardware(peak)
    if precision not in hardware.peak_flops:
        raise computekit.ComputekitError(
            f"the catalog has no {precision} peak of {hardware.name}, only {', '.join(hardware.peak_flops)}; "
            f"give it in FLOP/s: --peak 1e12"
        )
    return hardware.peak_flops[precision]
