"""``computekit cost instances``: what can be priced, and what a dollar buys there."""

from __future__ import annotations

import json
from typing import Any

import click

from computekit import ComputekitError, Price, options


@click.command()
@click.argument("words", nargs=-1, metavar="[WORD]...")
@click.option("--dtype", default="bf16", show_default=True, help="Type whose dense peak is set against the price.")
@click.option("--limit", type=click.IntRange(1), default=30, show_default=True, help="Rows at most.")
@options.as_json
@options.common
def instances(words: tuple[str, ...], dtype: str, limit: int, as_json: bool) -> None:
    """List the instances of the price catalog that have all the WORDs in their name or accelerator, the cheapest
    device-hour first, with the dense peak that a dollar per hour buys.

    \b
    Example:
      computekit cost instances H100
      computekit cost instances gcp us-central1 --dtype fp8
    """
    from tabulate import tabulate

    from computekit import catalog
    from computekit.contracts import PEAK_DTYPES

    if dtype not in PEAK_DTYPES:
        raise click.BadParameter(f"{dtype!r} is none of {', '.join(PEAK_DTYPES)}", param_hint="--dtype")
    found = [row for row in (_row(price, dtype) for price in catalog.prices()) if _has(row, words)]
    found.sort(key=lambda row: (row["usd_per_device_hour"], row["name"]))
    if not found:
        raise ComputekitError(f"no instance has {' and '.join(words)} in its name or accelerator")
    if as_json:
        click.echo(json.dumps(found[:limit], indent=2))
        return
    table = [
        (r["name"], f"{r['count']} x {r['accelerator']}" if r["accelerator"] else f"{r['vcpus']} vCPUs",
         r["on_demand_usd_per_hour"], r["spot_usd_per_hour"], r["usd_per_device_hour"], r["tflops_per_usd_per_hour"],
         r["date"] + (" (old)" if r["stale"] else ""))
        for r in found[:limit]
    ]  # fmt: skip
    heads = ["instance", "devices", "USD/h", "spot", "per device", f"{dtype} TFLOP/s per USD/h", "seen on"]
    click.echo(tabulate(table, headers=heads, tablefmt="plain", floatfmt=".4g"))
    if len(found) > limit:
        click.echo(f"{len(found) - limit} more: --limit {len(found)}", err=True)


def _row(price: Price, dtype: str) -> dict[str, Any]:
    from computekit import catalog

    from .rates import accelerator

    prices = (price.on_demand_usd_per_hour, price.spot_usd_per_hour,
              price.reserved_1y_usd_per_hour, price.reserved_3y_usd_per_hour)  # fmt: skip
    device = next(usd for usd in prices if usd is not None) / max(1, price.accelerator_count)
    hardware = accelerator(price.accelerator)
    peak = hardware.peak_flops.get(dtype) if hardware else None
    return {
        "name": price.name,
        "accelerator": price.accelerator,
        "count": price.accelerator_count,
        "vcpus": price.vcpus,
        "memory_gib": price.memory_gib,
        "on_demand_usd_per_hour": price.on_demand_usd_per_hour,
        "spot_usd_per_hour": price.spot_usd_per_hour,
        "usd_per_device_hour": device,
        "tflops_per_usd_per_hour": None if peak is None else peak / 1e12 / device,
        "date": price.snapshot_date,
        "stale": catalog.is_stale(price),
        "source": price.source,
    }


def _has(row: dict[str, Any], words: tuple[str, ...]) -> bool:
    text = f"{row['name']} {row['accelerator'] or 'cpu'}".lower()
    return all(word.lower() in text for word in words)
