"""What was quantized and what was not, by tensors and by bytes."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import Any

from .plan import Decision


class Coverage:
    """A view over the decisions of one plan."""

    def __init__(self, decisions: list[Decision]) -> None:
        self.decisions = decisions

    @property
    def share(self) -> float:
        """Bytes of the tensors that will be quantized over bytes of all tensors; tied ones count once.

        What is stored in two bytes counts where that is all that happens, not around weights in integers.
        """
        total = sum(decision.info.nbytes for decision in self.decisions)
        changed = [decision for decision in self.decisions if decision.quantized]
        counted = [decision for decision in changed if decision.treatment.scheme.bits < 16] or changed
        return sum(decision.info.nbytes for decision in counted) / total if total else 0.0

    def reasons(self) -> str:
        """Why tensors stay as they are: the reasons that hold the most bytes first."""
        held: Counter[str] = Counter()
        for decision in self.decisions:
            if not decision.quantized:
                held[decision.kept] += decision.info.nbytes
        return ", ".join(f"{reason}: {_size(count)}" for reason, count in held.most_common(3)) or "it holds no tensors"

    def rows(self) -> list[dict[str, Any]]:
        """Per role and fate: how many tensors, and their bytes before and after."""
        treatments = {d.treatment for d in self.decisions if d.quantized and d.treatment.scheme.bits < 16}
        groups: dict[tuple[str, str], list[Decision]] = {}
        for decision in self.decisions:
            mixed = len(treatments) > 1 and decision.treatment in treatments and decision.quantized
            fate = f"{decision.fate}, {decision.grid}" if mixed else decision.fate
            groups.setdefault((decision.role, fate), []).append(decision)
        return [
            {
                "role": role,
                "fate": fate,
                "kept": group[0].kept,
                "tensors": len(group),
                "bytes_before": sum(decision.info.nbytes for decision in group),
                "bytes_after": sum(decision.bytes_after for decision in group),
            }
            for (role, fate), group in groups.items()
        ]

    def tensors(self) -> list[dict[str, Any]]:
        """Per tensor: what it is and what became of it."""
        return [
            {
                "name": decision.info.name,
                **({"tied": list(decision.names[1:])} if len(decision.names) > 1 else {}),
                "role": decision.role,
                "shape": list(decision.info.shape),
                **(_treatment(decision) if decision.quantized else {"kept": decision.kept}),
                "bytes_before": decision.info.nbytes,
                "bytes_after": decision.bytes_after,
            }
            for decision in self.decisions
        ]

    def tensor_table(self) -> str:
        """Every tensor for a person: what it is and what becomes of it."""
        from tabulate import tabulate

        lines = [
            [d.info.name, d.role, "x".join(map(str, d.info.shape)), d.fate, _size(d.info.nbytes),
             _size(d.bytes_after)]
            for d in self.decisions
        ]  # fmt: skip
        return tabulate(lines, ["tensor", "role", "shape", "fate", "before", "after"], disable_numparse=True)

    def table(self) -> str:
        """`rows` for a person, the most bytes first, with a line of totals."""
        from tabulate import tabulate

        rows = sorted(self.rows(), key=lambda row: -row["bytes_before"])
        lines = [
            [
                row["role"],
                row["fate"],
                row["tensors"],
                _size(row["bytes_before"]),
                _size(row["bytes_after"]),
            ]
            for row in rows
        ]
        sums = {key: sum(row[key] for row in rows) for key in ("tensors", "bytes_before", "bytes_after")}
        lines.append(
            [
                "all",
                f"{self.share:.1%} quantized",
                sums["tensors"],
                _size(sums["bytes_before"]),
                _size(sums["bytes_after"]),
            ]
        )
        headers = ["role", "fate", "tensors", "before", "after"]
        return tabulate(lines, headers, disable_numparse=True, colalign=("left", "left", "right", "right", "right"))


def _treatment(decision: Decision) -> dict[str, Any]:
    about = {"scheme": decision.treatment.scheme.name, "activations": decision.treatment.activations}
    return {**about, "grids": asdict(decision.grids)} if decision.grids and decision.beside() else about


def _size(count: int) -> str:
    """Bytes for a person: 1234567 -> 1.23 MB (decimal units)."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{count / scale:.3g} {unit}"
    return f"{count} B"
