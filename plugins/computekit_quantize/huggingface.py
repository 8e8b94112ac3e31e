"""Hugging Face folders: what transformers can read back, and the quantization_config that tells it how.

The configuration is that of compressed-tensors (``compressed_tensors.quantization.QuantizationConfig``). It asks
transformers to dequantize while it loads: only then are tied and embedding weights read as well.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from computekit import FileProblem

if TYPE_CHECKING:
    from computekit.models import ModelFile, TensorInfo

    from .plan import Decision, Treatment


def is_folder(source: ModelFile) -> bool:
    """Whether ``source`` is a folder that transformers reads."""
    return source.format == "folder"


def check_plain(source: ModelFile) -> None:
    """Raise FileProblem if the config.json of a folder says that another tool quantized it."""
    config = getattr(source, "config", {}).get("quantization_config")
    if config:
        method = config.get("quant_method", "an unnamed method") if isinstance(config, dict) else config
        raise FileProblem(source.path, f"is quantized already (by {method})", "start from the original model")


_SMALLEST_GROUP = 8  # of 4-bit values: a float32 scale for fewer takes more bytes than they do


def unreadable(info: TensorInfo, group: int | None) -> str:
    """Why transformers could not read this tensor if it were quantized; empty if it could."""
    if len(info.shape) != 2 or info.name.rpartition(".")[2] != "weight":
        return "transformers reads only matrices named weight"
    if group is not None and info.shape[1] % group:
        return f"rows are not a multiple of {group}"
    return ""


def common_group(infos: Iterable[TensorInfo], wanted: int) -> int:
    """The largest group of at most ``wanted`` that divides the rows of all ``infos``; ``wanted`` if only tiny ones do.

    One for all: transformers 5 dequantizes every layer of a folder by the first of its config groups.
    """
    rows = math.gcd(*(info.shape[1] for info in infos if not unreadable(info, None)))
    return next((size for size in range(wanted, _SMALLEST_GROUP - 1, -1) if rows % size == 0), wanted)


def quantization_config(decisions: Sequence[Decision]) -> dict[str, Any]:
    """The ``quantization_config`` of config.json: a group for each treatment that ``decisions`` give.

    With several layouts of weights, it does not ask for dequantizing: transformers 5 would take all for the first.
    """
    treatments = list(dict.fromkeys(d.treatment for d in decisions if d.quantized and d.treatment.scheme.bits < 16))
    groups = {f"group_{i}": _group(decisions, treatment) for i, treatment in enumerate(treatments)}
    layouts = {group["format"] for group in groups.values()}
    return {
        "quant_method": "compressed-tensors",
        "format": layouts.pop() if len(layouts) == 1 else "mixed-precision",
        "quantization_status": "compressed",
        "dequantize": len({(t.scheme.bits, t.scheme.values, t.scheme.zero_points, t.group) for t in treatments}) == 1,
        "ignore": [],
        "config_groups": groups,
    }


def _group(decisions: Sequence[Decision], treatment: Treatment) -> dict[str, Any]:
    scheme, group = treatment.scheme, treatment.group
    values = {"num_bits": scheme.bits, "type": scheme.values, "symmetric": not scheme.zero_points}
    granularity = {"strategy": "channel"} if group is None else {"strategy": "group", "group_size": group}
    layout = (
        "pack-quantized" if scheme.bits == 4 else "naive-quantized" if scheme.values == "int" else "float-quantized"
    )
    about: dict[str, Any] = {
        "targets": _targets(decisions, treatment),
        "weights": {**values, "dynamic": False, **granularity},
    }
    if treatment.activations == "dynamic":
        layout = "int-quantized" if scheme.values == "int" else layout
        about["input_activations"] = {**values, "dynamic": True, "strategy": "token"}
    elif treatment.activations == "static":
        layout = "int-quantized"
        about["input_activations"] = {**values, "symmetric": False, "dynamic": False, "strategy": "tensor"}
    return {**about, "format": layout}


def _targets(decisions: Sequence[Decision], treatment: Treatment) -> list[str]:
    """Patterns of the modules that get ``treatment``; layers that differ only in their numbers share one."""
    modules = {
        name.rpartition(".")[0]: d.quantized and d.treatment == treatment
        for d in decisions
        for name in d.names
        if name.endswith(".weight")
    }
    kept = {_numberless(module) for module, treated in modules.items() if not treated}
    patterns = set()
    for module, treated in modules.items():
        if treated:
            pattern = _numberless(module)
            patterns.add(rf"re:(.*\.)?{re.escape(module) if pattern in kept else pattern}$")
    return sorted(patterns)


def _numberless(module: str) -> str:
    """``layers.12.mlp`` -> the pattern ``layers\\.\\d+\\.mlp``."""
    return r"\.".join(r"\d+" if part.isdigit() else re.escape(part) for part in module.split("."))
