"""Published runs: rows of a CSV turned into model, layout and device.

Every rule here is about how tables spell things or which software a source names; none changes a rate.
"""

from __future__ import annotations

import csv
import math
import re
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path

from computekit import FileProblem

from . import hardware
from .errors import CannotPredict
from .hardware import Gpu
from .layout import Layout, Recompute, Sharding, wants_slots
from .transformer import Transformer

COLUMNS = (
    "id", "kind", "model", "layers", "hidden", "heads", "kv_heads", "ffn", "ffn_gated", "vocab", "seq", "experts",
    "topk", "hardware", "num_gpus", "tp", "pp", "cp", "ep", "dp", "vp", "microbatch", "global_batch", "precision",
    "recompute", "sharding", "seq_parallel", "infer_batch", "in_len", "out_len", "tokens", "value", "unit",
    "definition", "source", "confidence",
)  # fmt: skip

REQUIRED = ("id", "kind", "value", "unit")


@dataclass(frozen=True)
class Run:
    """One published figure."""

    cells: dict[str, str]

    @property
    def id(self) -> str:
        return self.cells["id"]

    @property
    def kind(self) -> str:
        return self.cells["kind"]

    @property
    def family(self) -> str:
        """The part of the id that names the table: ``mlm21_t1``, ``bloomq``, ``foundry``."""
        first, *rest = self.id.split("_")
        return f"{first}_{rest[0]}" if rest and re.fullmatch(r"t\d+", rest[0]) else first

    @property
    def value(self) -> float:
        """The published value; raises CannotPredict where it is no finite number above 0."""
        value = self.number("value")
        if value is None or value <= 0:
            raise CannotPredict(f"value {self.cells['value']!r} is no number to compare with")
        return value

    def text(self, name: str) -> str:
        """A cell, stripped; empty if the column is missing."""
        return (self.cells.get(name) or "").strip()

    def number(self, name: str) -> float | None:
        """A cell as a finite number; None if it is empty or no number."""
        try:
            value = float(self.text(name))
        except ValueError:
            return None
        return value if math.isfinite(value) else None

    def whole(self, name: str, default: int | None = None, least: int = 1) -> int:
        """A cell as a whole number of at least ``least``.

        Raises:
            CannotPredict: it is no such number, or it is empty and has no default.
        """
        if not self.text(name):
            if default is None:
                raise CannotPredict(f"{name} is not published")
            return default
        value = self.number(name)
        if value is None or value < least or value % 1:
            raise CannotPredict(f"{name} {self.text(name)!r} is no whole number of at least {least}")
        return int(value)


def load(path: Path | None = None) -> list[Run]:
    """All rows of a CSV with the columns of the shipped table (the default).

    Raises:
        FileProblem: no CSV, or a required column is missing.
    """
    if path is None:
        text = (resources.files(__package__) / "data" / "published_runs.csv").read_text(encoding="utf-8")
        return _parse(text, Path("published_runs.csv"))
    try:
        return _parse(path.read_text(encoding="utf-8-sig"), path)
    except (UnicodeDecodeError, csv.Error, IsADirectoryError) as error:
        raise FileProblem(path, "is not a CSV file", f"it needs the columns {', '.join(REQUIRED)}, ...") from error


def _parse(text: str, path: Path) -> list[Run]:
    reader = csv.DictReader(text.splitlines())
    missing = [name for name in REQUIRED if name not in (reader.fieldnames or [])]
    if missing:
        raise FileProblem(path, f"has no column {', '.join(missing)}", "use the columns of published_runs.csv")
    return [Run({k: v or "" for k, v in cells.items() if k is not None}) for cells in reader]


def model_of(run: Run) -> Transformer:
    """The transformer of a row; raises CannotPredict if its dimensions are not all there."""
    layers, hidden, heads = (run.whole(name) for name in ("layers", "hidden", "heads"))
    gated = bool(run.whole("ffn_gated", 0, least=0))
    experts = run.whole("experts", 0, least=0)
    if experts and not run.text("kv_heads"):
        raise CannotPredict("the columns do not hold latent attention, shared experts or the experts' own width")
    vocab = run.whole("vocab", 0, least=0)
    ffn = run.whole("ffn", 4 * hidden)
    rough = layers * (4 + (3 if gated else 2) * ffn / hidden * max(experts, 1)) * hidden**2
    return Transformer(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=run.whole("kv_heads", heads) or heads,
        head_dim=round(hidden / heads),  # published tables round: GPT-3 13B has hidden 5140 and 40 heads
        ffn=ffn,
        gated=gated,
        vocab=vocab,
        seq=run.whole("seq", 2048),
        experts=experts,
        topk=run.whole("topk", 2) if experts else 0,
        tied=not gated or vocab * hidden > 0.1 * rough,  # where they weigh much, embeddings are shared
        rotary=gated,
        bias=not gated,
        name=run.text("model"),
    )


def gpu_of(run: Run) -> Gpu:
    """The device of a row, with its network where the row tells it."""
    name = run.text("hardware")
    if not name:
        raise CannotPredict("the hardware is not published")
    about = re.search(r"(\d+) Gbps node-node", run.text("definition"))
    gpu = hardware.find(name, published=True)
    if about:
        gpu = replace(gpu, network_rate=int(about[1]) / 8 * 1e9 / gpu.node_gpus)
    return gpu


_RECOMPUTE: dict[str, Recompute] = {
    "": "none", "none": "none", "selective": "selective", "selective(op)": "operators", "operators": "operators",
    "full": "full",
}  # fmt: skip
_DEEPSPEED = ("deepspeed", "2201.11990")
"""What marks a source as runs of the DeepSpeed engine; the number is "Using DeepSpeed and Megatron to Train ..."."""


def layout_of(run: Run, model: Transformer, gpu: Gpu) -> Layout:
    """The layout of a training row.

    What the columns do not hold follows from them. Attention wrote its score matrix in the Megatron and DeepSpeed
    stacks before fused kernels: Ampere or older, no FSDP, activations recomputed or fp16. Those stacks also did not
    overlap gradient communication, and dropped attention and residuals out.
    """
    gpus = run.whole("num_gpus")
    if gpus > 1 and not any(run.text(name) for name in ("tp", "pp", "dp")):
        raise CannotPredict("the layout (tp, pp, dp) is not published")
    tp, pp, cp = run.whole("tp", 1), run.whole("pp", 1), run.whole("cp", 1)
    dp = run.whole("dp", max(gpus // (tp * pp * cp), 1))
    if tp * pp * cp * dp != gpus:
        raise CannotPredict(f"tp x pp x cp x dp = {tp * pp * cp * dp} is not the {gpus} devices of the row")
    sharding, recompute, note = run.text("sharding"), run.text("recompute"), run.text("definition").lower()
    fsdp = "fsdp" in sharding or sharding.startswith("zero2")
    distributed_optimizer = "dist-opt" in sharding
    half = (run.text("precision") or "bf16").removeprefix("amp_")
    plain = recompute in ("", "none") and half != "fp16"
    modern = gpu.year >= 2022 or fsdp or distributed_optimizer or "flash" in note or plain
    about = f"{note} {run.text('source').lower()}"
    deepspeed = sharding.startswith("zero") or any(name in about for name in _DEEPSPEED)
    fp32_gradients = "fp32 grad" in note or "fsdp2" in sharding or distributed_optimizer
    if recompute not in _RECOMPUTE:
        raise CannotPredict(f"recompute {recompute!r} is not modelled; known: {', '.join(filter(None, _RECOMPUTE))}")
    micro = run.number("microbatch")
    batch = run.whole("global_batch", dp * int(micro) if micro else None)
    if micro and pp > 1 and batch == dp * micro:
        micro = 1.0  # a pipeline of a single microbatch is none: the table gives the rank's whole batch
    return Layout(
        tp=tp,
        pp=pp,
        cp=cp,
        ep=run.whole("ep", 1),
        dp=dp,
        vp=run.whole("vp", 0 if pp > 1 and not micro else 1),
        microbatch=int(micro) if micro else 0,
        global_batch=batch,
        precision=half,
        recompute=_RECOMPUTE[recompute],
        sharding=_sharding(sharding),
        sequence_parallel=bool(run.whole("seq_parallel", 0, least=0)) or ("fsdp2" in sharding and tp > 1),
        fused_attention=modern,
        overlap=modern or sharding.startswith("zero3"),
        compiled="compile" in note or ("fsdp2" in sharding and half == "fp8"),
        gradient_bytes=4.0 if fp32_gradients else 2.0,
        slots=wants_slots(model.layers, pp),
        dropout=not modern,
        rails=modern,
        blocking=not modern and deepspeed,
        tensor_overlap="asynctp" in note or distributed_optimizer,
    )


def _sharding(text: str) -> Sharding:
    """The stage of ZeRO that a cell such as ``zero3(fsdp)`` or ``fsdp2`` means."""
    stages: tuple[Sharding, ...] = ("zero1", "zero2", "zero3")
    for stage in stages:
        if text.startswith(stage):
            return stage
    if "fsdp" in text:
        return "zero3"
    if text not in ("", "none"):
        raise CannotPredict(f"sharding {text!r} is not modelled; known: none, {', '.join(stages)}, fsdp")
    return "none"
