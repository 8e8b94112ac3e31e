"""A transformer by its dimensions: parameters and FLOPs without building it.

Symbols: L layers, h hidden, a heads, k key-value heads, d head dimension, f feed-forward width, V vocabulary,
s sequence length, E experts of which each token uses topk. A multiply-add is 2 FLOPs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .errors import ContradictingDimensions


@dataclass(frozen=True)
class Transformer:
    """Dimensions of a transformer (decoder or encoder).

    ``gated`` feed-forward blocks have three matrices (SwiGLU), others two. ``rotary`` models have no learned positions,
    others ``positions`` of them (as many as ``seq`` unless given).
    ``bias`` adds biases to every projection and norm, as GPT does. ``tied`` output and input embeddings share weights.
    With ``experts`` the feed-forward block of every layer is a mixture, routed to ``topk`` experts.
    """

    layers: int
    hidden: int
    heads: int
    ffn: int
    vocab: int
    kv_heads: int = 0
    head_dim: int = 0
    gated: bool = False
    seq: int = 2048
    experts: int = 0
    topk: int = 0
    tied: bool = True
    rotary: bool = False
    bias: bool = True
    positions: int = 0
    name: str = "transformer"

    def __post_init__(self) -> None:
        if min(self.layers, self.hidden, self.heads, self.ffn, self.seq) < 1 or self.vocab < 0:
            raise ContradictingDimensions("layers, hidden, heads, ffn and seq must be at least 1")
        if not self.head_dim:
            if self.hidden % self.heads:
                raise ContradictingDimensions(
                    f"hidden {self.hidden} is not a multiple of heads {self.heads}; give the head dimension or "
                    f"{_near_divisor(self.hidden, self.heads)} heads"
                )
            object.__setattr__(self, "head_dim", self.hidden // self.heads)
        if not self.rotary and not self.positions:
            object.__setattr__(self, "positions", self.seq)
        if not self.kv_heads:
            object.__setattr__(self, "kv_heads", self.heads)
        if self.heads % self.kv_heads:
            raise ContradictingDimensions(
                f"heads {self.heads} is not a multiple of kv_heads {self.kv_heads}; the nearest is "
                f"{_near_divisor(self.heads, self.kv_heads)}"
            )
        if self.experts and not 0 < self.topk <= self.experts:
            raise ContradictingDimensions(f"topk must be between 1 and experts ({self.experts}), not {self.topk}")

    @property
    def q_width(self) -> int:
        """Width of all query heads together (a d)."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Width of all key heads together (k d)."""
        return self.kv_heads * self.head_dim

    @property
    def attention_params(self) -> int:
        """Weights of one layer's attention: Q, K, V and the output projection."""
        weights = self.hidden * (self.q_width + 2 * self.kv_width) + self.q_width * self.hidden
        return weights + (self.q_width + 2 * self.kv_width + self.hidden if self.bias else 0)

    @property
    def expert_params(self) -> int:
        """Weights of one feed-forward block (of one expert)."""
        matrices = 3 if self.gated else 2
        biases = (self.ffn * (matrices - 1) + self.hidden) if self.bias else 0
        return matrices * self.hidden * self.ffn + biases

    @property
    def layer_params(self) -> int:
        """Weights of one layer, norms and router included, with all experts."""
        norms = 2 * self.hidden * (2 if self.bias else 1)
        router = self.hidden * self.experts
        return self.attention_params + self.expert_params * max(self.experts, 1) + norms + router

    @property
    def embedding_params(self) -> int:
        """Token embedding, and learned positions where there are some."""
        return (self.vocab + self.positions) * self.hidden

    @property
    def head_params(self) -> int:
        """Output projection, where it is not tied to the embedding."""
        return 0 if self.tied else self.vocab * self.hidden

    @property
    def parameters(self) -> int:
        """All weights."""
        final_norm = self.hidden * (2 if self.bias else 1)
        return self.layers * self.layer_params + self.embedding_params + self.head_params + final_norm

    @property
    def active_parameters(self) -> int:
        """Weights that one token meets: of a mixture of experts only ``topk`` of each layer."""
        idle = self.experts - self.topk if self.experts else 0
        return self.parameters - self.layers * idle * self.expert_params

    def attention_flops(self, seq: int | None = None, causal: bool = False) -> int:
        """Q K^T and P V of all layers for one sequence; with ``causal`` the unmasked pairs only."""
        seq = seq or self.seq
        pairs = seq * (seq + 1) // 2 if causal else seq * seq
        return self.layers * 4 * pairs * self.q_width

    def forward_flops(self, seq: int | None = None, causal: bool = False) -> int:
        """Contractions of one forward pass over one sequence, logits included."""
        seq = seq or self.seq
        attention = self.hidden * (self.q_width + 2 * self.kv_width) + self.q_width * self.hidden
        block = (3 if self.gated else 2) * self.hidden * self.ffn * (self.topk if self.experts else 1)
        router = self.hidden * self.experts
        weights = self.layers * (attention + block + router) + self.vocab * self.hidden
        return 2 * seq * weights + self.attention_flops(seq, causal)


def from_config(config: Mapping[str, Any], name: str = "") -> Transformer:
    """Dimensions from a Hugging Face ``config.json``, by the names that its families use.

    Raises:
        ContradictingDimensions: a dimension is missing.
    """
    text = config.get("text_config")
    if isinstance(text, Mapping):
        config = {**config, **text}

    def pick(*names: str, default: Any = None) -> Any:
        return next((config[n] for n in names if config.get(n) is not None), default)

    missing = [wanted[0] for wanted in (_LAYERS, _HIDDEN, _HEADS) if not isinstance(pick(*wanted), int)]
    if missing:
        raise ContradictingDimensions(f"the config names no {', '.join(missing)}")
    hidden, heads = int(pick(*_HIDDEN)), int(pick(*_HEADS))
    kind = str(config.get("model_type", ""))
    gated = kind in _GATED or str(pick("hidden_act", "activation_function", default="")) in ("silu", "swiglu")
    return Transformer(
        layers=int(pick(*_LAYERS)),
        hidden=hidden,
        heads=heads,
        kv_heads=int(pick("num_key_value_heads", "num_kv_heads", default=heads)),
        head_dim=int(pick("head_dim", default=0) or 0),
        ffn=int(pick("moe_intermediate_size", "intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size",
                     default=4 * hidden)),
        gated=gated,
        vocab=int(pick("vocab_size", default=0)),
        seq=int(pick("max_position_embeddings", "n_positions", "n_ctx", "seq_length", default=2048)),
        experts=int(pick("num_local_experts", "n_routed_experts", "num_experts", default=0)),
        topk=int(pick("num_experts_per_tok", "moe_topk", default=0)),
        tied=bool(config.get("tie_word_embeddings", kind in ("gpt2", "bloom"))),
        rotary=gated or "rope_theta" in config or "rotary_dim" in config or kind in ("bloom", "falcon"),
        bias=not gated,
        name=name or kind or "transformer",
    )  # fmt: skip


_LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
_HIDDEN = ("hidden_size", "n_embd", "d_model", "model_dim")
_HEADS = ("num_attention_heads", "n_head", "num_heads", "n_heads")
_GATED = ("llama", "mistral", "mixtral", "qwen2", "qwen3", "gemma", "gemma2", "phi3", "deepseek_v2", "deepseek_v3")


def _near_divisor(total: int, wanted: int) -> int:
    """The divisor of ``total`` nearest to ``wanted``."""
    return min((d for d in range(1, total + 1) if total % d == 0), key=lambda d: abs(d - wanted))
