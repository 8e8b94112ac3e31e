"""How far estimates of each kind were from published runs, and the intervals that follow from it.

``data/accuracy.json`` holds quantiles of published / predicted over the shipped table, made by
``python -m computekit_estimator.accuracy``; a test compares it with a fresh computation.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .transformer import Transformer

CONFIDENCE = 0.9


@dataclass(frozen=True)
class Accuracy:
    """Published (measured) / predicted of ``rows`` runs: 5 % of them are below ``low``, 5 % above ``high``."""

    rows: int
    low: float
    high: float
    method: str = ""

    def about(self, value: float) -> dict[str, Any]:
        """Arguments of a `Quantity` for an estimate: its interval, confidence and how that was found."""
        return {
            "interval": (value * self.low, value * self.high),
            "confidence": CONFIDENCE,
            "method": self.method or f"interval: published over predicted of {self.rows} runs, 5% to 95%",
        }


def measure() -> dict[str, Any]:
    """Quantiles by class of quantity over every published run that can be predicted, rates turned into times; and the
    devices of those runs."""
    import numpy as np

    from . import published, runs
    from .predict import kind_of
    from .validate import CLASSES, class_of, compare

    found: dict[str, list[float]] = {name: [] for name in CLASSES if name != "counts"}
    devices = set()
    for run in runs.load():
        row, name = compare(run), class_of(run)
        if name in found and row.error is not None:
            ratio = 1 / (1 + row.error)
            is_time = "time" not in name or kind_of(run) in ("iter_time_s", "train_days", "train_gpu_hours")
            found[name].append(ratio if is_time else 1 / ratio)
            devices.add(published.gpu_of(run).name)
    classes = {
        name: {
            "rows": len(ratios),
            "low": round(float(np.quantile(ratios, 0.05)), 3),
            "high": round(float(np.quantile(ratios, 0.95)), 3),
        }
        for name, ratios in found.items()
        if ratios
    }
    return {"classes": classes, "devices": sorted(devices)}


@functools.cache
def _shipped() -> dict[str, Any]:
    text = (resources.files(__package__) / "data" / "accuracy.json").read_text(encoding="utf-8")
    return dict(json.loads(text))


def of(name: str) -> Accuracy:
    """The accuracy of a class of `validate.CLASSES`."""
    return Accuracy(**_shipped()["classes"][name])


def training_time(model: Transformer) -> Accuracy:
    """The accuracy of step times of ``model``; mixtures of experts have runs of their own."""
    return of("training time, mixtures of experts" if model.experts else "training time")


def generic() -> Accuracy:
    """The accuracy of the roofline for any module: ``data/generic.json``, made by benchmarks/generic_roofline.py."""
    import statistics

    text = (resources.files(__package__) / "data" / "generic.json").read_text(encoding="utf-8")
    document = json.loads(text)
    ratios = [row["measured_s"] / row["predicted_s"] for row in document["rows"]]
    cuts = statistics.quantiles(ratios, n=20, method="inclusive")
    about = f"measured over predicted of {len(ratios)} passes on one core of {document['device']['name']}, 5% to 95%"
    return Accuracy(
        len(ratios), round(cuts[0], 3), round(cuts[-1], 3), f"roofline over the operators; interval: {about}"
    )


def caveat(device: str) -> str | None:
    """What to say of an estimate for a device that no published run is of; None where there are some."""
    if device in _shipped()["devices"]:
        return None
    return (
        f"no published run is of {device}: the interval is that of other devices ({', '.join(_shipped()['devices'])})"
    )


if __name__ == "__main__":
    target = Path(str(resources.files("computekit_estimator") / "data" / "accuracy.json"))
    target.write_text(json.dumps(measure(), indent=2) + "\n", encoding="utf-8")
