"""Energy: measured where a counter was read, an upper bound where only the data sheet is known, else unknown."""

from __future__ import annotations

from dataclasses import dataclass

from computekit import ComputekitError, catalog
from computekit.catalog import CarbonIntensity
from computekit.records import Device, How


@dataclass(frozen=True)
class Power:
    """Electrical power of the device that was measured, and how it is known; ``watts`` is None with a ``reason``."""

    watts: float | None
    how: How = "catalog"
    about: str = ""
    reason: str = ""


def power_of(device: Device | None, given_w: float | None) -> Power:
    """The power that the user gave, else the thermal design power of the device in the catalog.

    Devices draw less than their design power at most loads, so energy from it is an upper bound for the device (not
    for its host; for a processor, for the whole package even if the run used a part of it).
    """
    if given_w is not None:
        return Power(given_w, "given", f"{given_w:g} W, given")
    if device is None:
        return Power(None, reason="the record names no device; give --device-power-w")
    try:
        if device.kind == "cpu":
            processor = catalog.find_processor(device.name)
            return _design_power(processor.tdp_w, f"the whole {processor.name}", processor.source)
        hardware = catalog.find_hardware(device.name)
    except ComputekitError:
        reason = f"no energy counter was read, and the catalog has no power for {device.name}; give --device-power-w"
        return Power(None, reason=reason)
    if hardware.tdp_w is None:
        return Power(None, reason=f"the maker publishes no power for {hardware.name}; give --device-power-w")
    whose = f"{hardware.name} (not verified)" if "tdp" in hardware.unverified else hardware.name
    return _design_power(hardware.tdp_w, whose, hardware.source)


def _design_power(watts: float, whose: str, source: str) -> Power:
    about = f"upper bound: design power {watts:g} W of {whose}, rest of the host not included; {source}"
    return Power(watts, "catalog", about)


def intensity(text: str | None) -> CarbonIntensity | None:
    """``--carbon-intensity``: a number of g/kWh, or a place of the catalog; None stays None.

    Raises:
        UnknownName: no such place.
        ComputekitError: a negative or infinite number.
    """
    if text is None:
        return None
    try:
        grams = float(text)
    except ValueError:
        return catalog.find_carbon_intensity(text)
    if not 0 <= grams < 10_000:
        raise ComputekitError(f"--carbon-intensity {text} is no number of g CO2e per kWh")
    return CarbonIntensity("given", "given", grams, None, "given")
