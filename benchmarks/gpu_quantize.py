"""8-bit linear layers against bf16 on a GPU: prefill and decode shapes, ratio of times and share of the roofline.

    python benchmarks/gpu_quantize.py [--json rows.json]

For each shape the layers are called in turns, 50 rounds, timed by the device; a ratio is the median over rounds of the
time in bf16 over that of the 8-bit layer, quantization of the input included. The roofline is that of the catalog: the
larger of operations over the peak rate of the type and bytes (weights, input, output) over the bandwidth.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from torch import nn

from computekit import ComputekitError, Hardware, files
from computekit.catalog import find_hardware
from computekit.models import compressed, scaled_linear
from computekit.models.compressed_layers import compress_parameter
from computekit.statistics import quantile_interval

SHAPES = [(rows, width, 4 * width) for width in (1024, 4096) for rows in (1, 16, 512, 4096)]
ROUNDS = 50


def layers(inputs: int, outputs: int, device: torch.device) -> dict[str, nn.Module]:
    """One linear layer in bf16, and with weights and inputs in 8 bits."""
    plain = nn.Linear(inputs, outputs, bias=False)
    found: dict[str, nn.Module] = {"bf16": plain.to(device, torch.bfloat16)}
    for name, quantize in (("int8", compressed.quantize), ("fp8", compressed.quantize_float8)):
        layer = nn.Linear(inputs, outputs, bias=False).bfloat16()
        compress_parameter([(layer, "weight")], quantize(plain.weight.detach().cpu()), "dynamic")
        layer.to(device)
        weight = layer._parameters["weight"]
        if weight is not None and scaled_linear.fits(torch.empty(1, inputs, device=device), weight):
            found[name] = layer
    return found


def seconds(layer: nn.Module, value: torch.Tensor) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    begin.record()
    layer(value)
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3


def roofline(device: Hardware | None, name: str, rows: int, inputs: int, outputs: int) -> float | None:
    """The least seconds that the catalog's device needs; None where it does not tell the rate."""
    rate = device.peak_flops.get(name) if device is not None else None
    if device is None or rate is None:
        return None
    moved = inputs * outputs * (2 if name == "bf16" else 1) + 2 * rows * (inputs + outputs)
    return max(2 * rows * inputs * outputs / rate, moved / device.bandwidth_bytes_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the rows here")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("no CUDA device")
    device = torch.device("cuda")
    name = torch.cuda.get_device_name(device)
    try:
        known: Hardware | None = find_hardware(name)
    except ComputekitError:
        known = None
    rows: list[dict[str, Any]] = []
    for count, inputs, outputs in SHAPES:
        racing = layers(inputs, outputs, device)
        value = torch.randn(count, inputs, device=device, dtype=torch.bfloat16)
        times: dict[str, list[float]] = {kind: [] for kind in racing}
        with torch.inference_mode():
            for _ in range(ROUNDS + 5):
                for kind, layer in racing.items():
                    times[kind].append(seconds(layer, value))
        for kind, spent in times.items():
            ratio = quantile_interval([base / own for base, own in zip(times["bf16"][5:], spent[5:], strict=True)])
            middle = sorted(spent[5:])[ROUNDS // 2]
            least = roofline(known, kind, count, inputs, outputs)
            share = None if least is None else least / middle
            rows.append({"device": name, "rows": count, "in": inputs, "out": outputs, "type": kind, "time_s": middle,
                         "ratio": ratio.value, "interval": ratio.interval, "roofline_share": share})  # fmt: skip
            of_roofline = "" if share is None else f"  {share:.0%} of the roofline"
            print(
                f"{count:5} x {inputs} -> {outputs}  {kind:5} {1e6 * middle:9.1f} us  {ratio.value:5.2f}x{of_roofline}"
            )
    if arguments.json:
        files.write_text(arguments.json, json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
