"""The cost of a long sequence from those of short ones, for code that runs its operators once for each token.

Products over tokens grow linearly and attention quadratically, so three counts at equal steps of length give any other
exactly; a fourth tells whether the cost grows so at all (code that works in chunks does not).
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from computekit.flops import Cost, FlopCount

STEPS = (16, 2, 64)
"""Steps of length to try: most code, code with very many operators for each token, code that pads to chunks of 64."""

_CONTRACTIONS = ("forward", "backward", "causal_saving")
_TOTALS = (*_CONTRACTIONS, "forward_other", "backward_other", "activation_bytes", "moved_bytes")
_CLOSE = 0.01
"""How far all else may be off where contractions are exact: a first chunk has less to copy."""


def samples(step: int) -> tuple[int, ...]:
    """Tokens of the four samples to count."""
    return step, 2 * step, 3 * step, 4 * step


def extended(counts: Sequence[FlopCount], step: int, tokens: int) -> FlopCount | None:
    """The count of ``tokens`` tokens from those of `samples`; None where they do not lie on one quadratic.

    Code whose number of operators does not grow with length works in chunks longer than these samples: None too.
    """
    calls = [sum(cost.calls for cost in count.by_op.values()) for count in counts]
    if not calls[0] < calls[1] < calls[2] or tokens % step:
        return None
    values: dict[str, Any] = {}
    for name in _TOTALS:
        ys = [getattr(count, name) for count in counts]
        values[name] = None if None in ys else _at(ys, step, tokens)
        if None in ys:
            continue
        if abs(_at(ys, step, 4 * step) - ys[3]) > (0 if name in _CONTRACTIONS else _CLOSE * ys[3]):
            return None
    by_module, by_op = (
        _costs([getattr(count, name) for count in counts], step, tokens) for name in ("by_module", "by_op")
    )
    return replace(counts[3], **values, by_module=by_module, by_op=by_op)


def _at(ys: Sequence[int], step: int, tokens: int) -> int:
    """The quadratic through the first three of ``ys`` at ``tokens``, a multiple of ``step`` (Newton's differences)."""
    past = tokens // step - 1
    return ys[0] + past * (ys[1] - ys[0]) + past * (past - 1) // 2 * (ys[2] - 2 * ys[1] + ys[0])


def _costs(counts: Sequence[Mapping[str, Cost]], step: int, tokens: int) -> dict[str, Cost]:
    """`_at` for each number of the costs that all samples have."""
    made: dict[str, Cost] = {}
    for key in counts[0]:
        if all(key in count for count in counts):
            ys = {each.name: [getattr(count[key], each.name) for count in counts] for each in fields(counts[0][key])}
            made[key] = replace(counts[0][key], **{name: _at(values, step, tokens) for name, values in ys.items()})
    return made
