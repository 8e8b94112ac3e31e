"""Mixtures of experts whose code runs every expert for every token, and weighs most of the results with zero."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from computekit.flops import FlopCount


def of_config(hf: Any) -> tuple[int, int]:
    """Experts of a layer and how many each token uses; zeros without."""
    text = getattr(hf, "text_config", None) or hf
    found = [
        next((int(getattr(text, name)) for name in names if isinstance(getattr(text, name, None), int)), 0)
        for names in (("num_local_experts", "n_routed_experts", "num_experts"), ("num_experts_per_tok", "moe_topk"))
    ]
    return found[0], found[1]


def routed(cost: FlopCount, module: Any, experts: int, topk: int, tokens: int) -> FlopCount | None:
    """``cost`` with ``topk`` experts a token where all ``experts`` ran; None if none did.

    The weights of a layer's experts are stacked, (experts, in, out); a module whose products are those of all of them
    with all tokens ran them all. By operator the costs stay those of the code, which is what takes its time.
    """
    spared, spared_back = 0, 0
    by_module = {name: replace(each) for name, each in cost.by_module.items()}
    for name, part in module.named_modules():
        stacks = [p for p in part.parameters(recurse=False) if p.dim() == 3 and p.shape[0] == experts]
        ran = cost.by_module.get(name)
        if stacks and ran is not None and ran.forward == 2 * tokens * sum(p.numel() for p in stacks):
            forward, backward = (n * (experts - topk) // experts for n in (ran.forward, ran.backward))
            spared, spared_back = spared + forward, spared_back + backward
            for outer in ("", *itertools.accumulate(name.split("."), "{}.{}".format)):
                by_module[outer].forward -= forward
                by_module[outer].backward -= backward
    if not spared:
        return None
    back = None if cost.backward is None else cost.backward - spared_back
    return replace(cost, forward=cost.forward - spared, backward=back, by_module=by_module)
