"""A transformer by its dimensions: parameters and FLOPs without building it.

Symbols: L layers, h hidden, a heads, k key-value heads, d head dimension, f feed-forward width, V vocabulary,
s sequence length, E experts of which each token uses topk. A multiply-add is 2 FLOPs.

Latent attention (MLA: DeepSeek-V2, arXiv:2405.04434, section 2.1) projects keys and values from one vector of
``kv_lora`` elements a token, and queries from one of ``q_lora``; ``rope_dim`` elements of each query and of one shared
key carry the position.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .divisors import near
from .errors import ContradictingDimensions


@dataclass(frozen=True)
class Transformer:
    """Dimensions of a transformer (decoder or encoder).

    ``gated`` feed-forward blocks have three matrices (SwiGLU), others two. ``rotary`` models have no learned positions,
    others ``positions`` of them (as many as ``seq`` unless given).
    ``bias`` adds biases to every projection and norm, as GPT does. ``tied`` output and input embeddings share weights.
    With ``experts`` the feed-forward block is a mixture, routed to ``topk`` experts of width ``expert_ffn`` (``ffn``
    unless given) beside ``shared_experts`` that every token uses; the first ``dense_layers`` have a plain block.
    ``kv_lora`` makes attention latent; then ``head_dim`` is that of queries and keys, ``v_dim`` that of values.
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
    v_dim: int = 0
    q_lora: int = 0
    kv_lora: int = 0
    rope_dim: int = 0
    expert_ffn: int = 0
    shared_experts: int = 0
    dense_layers: int = 0
    name: str = "transformer"

    def __post_init__(self) -> None:
        if min(self.layers, self.hidden, self.heads, self.ffn, self.seq) < 1 or self.vocab < 0:
            raise ContradictingDimensions("layers, hidden, heads, ffn and seq must be at least 1")
        if not self.head_dim:
            if self.hidden % self.heads:
                raise ContradictingDimensions(
                    f"hidden {self.hidden} is not a multiple of heads {self.heads}; give the head dimension or "
                    f"{near(self.hidden, self.heads)} heads"
                )
            object.__setattr__(self, "head_dim", self.hidden // self.heads)
        if not self.rotary and not self.positions:
            object.__setattr__(self, "positions", self.seq)
        for name, default in (("kv_heads", self.heads), ("v_dim", self.head_dim), ("expert_ffn", self.ffn)):
            if not getattr(self, name):
                object.__setattr__(self, name, default)
        if self.heads % self.kv_heads:
            raise ContradictingDimensions(
                f"heads {self.heads} is not a multiple of kv_heads {self.kv_heads}; the nearest is "
                f"{near(self.heads, self.kv_heads)}"
            )
        if self.experts and not 0 < self.topk <= self.experts:
            raise ContradictingDimensions(f"topk must be between 1 and experts ({self.experts}), not {self.topk}")

    @property
    def q_width(self) -> int:
        """Width of all query heads together (a d)."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Width of the keys and values of all heads together, which attention reads."""
        each = self.head_dim + self.v_dim
        return (self.heads if self.kv_lora else self.kv_heads) * each

    @property
    def v_width(self) -> int:
        """Width of attention's result, all heads together."""
        return self.heads * self.v_dim

    @property
    def cache_width(self) -> int:
        """Elements that one token leaves in one layer's cache: keys and values, or the latent vector they come from."""
        return self.kv_lora + self.rope_dim if self.kv_lora else self.kv_width

    def attention_products(self, ranks: Any = 1) -> list[tuple[Any, Any]]:
        """Rows and columns of the weights of one layer's attention on each of ``ranks`` of tensor parallelism.

        Heads are split; the last of the key-value heads, and what latent attention projects down to, are on every rank.
        """
        h, v = self.hidden, self.heads * self.v_dim / ranks
        if not self.kv_lora:
            kept = self.kv_width / np.minimum(ranks, self.kv_heads)
            return [(self.q_width / ranks + kept, h), (h, v)]
        queries = (
            [(self.q_lora, h), (self.q_width / ranks, self.q_lora)] if self.q_lora else [(self.q_width / ranks, h)]
        )
        unpacked = self.heads * (self.head_dim - self.rope_dim + self.v_dim) / ranks
        return [*queries, (self.kv_lora + self.rope_dim, h), (unpacked, self.kv_lora), (h, v)]

    @property
    def attention_weights(self) -> int:
        """Elements of the matrices of one layer's attention."""
        return round(sum(float(rows) * float(columns) for rows, columns in self.attention_products()))

    @property
    def attention_params(self) -> int:
        """Weights of one layer's attention: Q, K, V and the output projection."""
        biases = self.q_width + self.kv_width + self.hidden if self.bias else 0
        return self.attention_weights + self.q_lora + self.kv_lora + biases

    def _block_params(self, width: int) -> int:
        matrices = 3 if self.gated else 2
        biases = (width * (matrices - 1) + self.hidden) if self.bias else 0
        return matrices * self.hidden * width + biases

    @property
    def expert_params(self) -> int:
        """Weights of one expert; without experts, of the feed-forward block."""
        return self._block_params(self.expert_ffn)

    @property
    def moe_layers(self) -> int:
        """Layers whose feed-forward block is a mixture."""
        return self.layers - self.dense_layers if self.experts else 0

    @property
    def common_layer_params(self) -> float:
        """Weights of an average layer without its routed experts: what every rank of expert parallelism holds."""
        norms = 2 * self.hidden * (2 if self.bias else 1)
        mixed = self.hidden * self.experts + self.shared_experts * self.expert_params
        plain = self._block_params(self.ffn)
        blocks = self.moe_layers * mixed + (self.layers - self.moe_layers) * plain
        return self.attention_params + norms + blocks / self.layers

    @property
    def routed_layer_params(self) -> float:
        """Weights of all routed experts of an average layer."""
        return self.experts * self.expert_params * self.moe_layers / self.layers

    @property
    def layer_params(self) -> float:
        """Weights of an average layer, norms and router included, with all experts."""
        return self.common_layer_params + self.routed_layer_params

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
        return round(self.layers * self.layer_params) + self.embedding_params + self.head_params + final_norm

    @property
    def active_parameters(self) -> int:
        """Weights that one token meets: of a mixture of experts only ``topk`` of each layer."""
        return self.parameters - self.moe_layers * (self.experts - self.topk) * self.expert_params

    def attention_flops(self, seq: int | None = None, causal: bool = False) -> int:
        """Q K^T and P V of all layers for one sequence; with ``causal`` the unmasked pairs only."""
        seq = seq or self.seq
        pairs = seq * (seq + 1) // 2 if causal else seq * seq
        return self.layers * 2 * pairs * (self.q_width + self.v_width)

    def forward_flops(self, seq: int | None = None, causal: bool = False) -> int:
        """Contractions of one forward pass over one sequence, logits included."""
        seq = seq or self.seq
        attention = self.attention_weights
        expert = (3 if self.gated else 2) * self.hidden * self.expert_ffn
        mixed = expert * (self.topk + self.shared_experts) + self.hidden * self.experts
        plain = (3 if self.gated else 2) * self.hidden * self.ffn
        blocks = self.moe_layers * mixed + (self.layers - self.moe_layers) * plain
        weights = self.layers * attention + blocks + self.vocab * self.hidden
        return 2 * seq * weights + self.attention_flops(seq, causal)


def from_config(config: Mapping[str, Any], name: str = "") -> Transformer:
    """Dimensions from a Hugging Face ``config.json``, by the names that its families use.

    Raises:
        ContradictingDimensions: a dimension is missing, or layers are of other kinds than attention.
    """
    text = config.get("text_config")
    if isinstance(text, Mapping):
        config = {**config, **text}

    def pick(*names: str, default: Any = None) -> Any:
        return next((config[n] for n in names if config.get(n) is not None), default)

    missing = [wanted[0] for wanted in (_LAYERS, _HIDDEN, _HEADS) if not isinstance(pick(*wanted), int)]
    if isinstance(pick("intermediate_size"), (list, tuple)):
        raise ContradictingDimensions("its layers differ in width")
    if missing:
        raise ContradictingDimensions(f"the config names no {', '.join(missing)}")
    hidden, heads = int(pick(*_HIDDEN)), int(pick(*_HEADS))
    kind = str(config.get("model_type", ""))
    kinds = set(config.get("layer_types") or []) - {"full_attention", "sliding_attention", "chunked_attention"}
    if kinds:
        raise ContradictingDimensions(f"not all layers are attention: {', '.join(sorted(map(str, kinds)))}")
    experts = int(pick("num_local_experts", "n_routed_experts", "num_experts", default=0))
    latent = _latent(pick)
    gated = kind.startswith(_GATED) or str(pick("hidden_act", "activation_function", default="")) in ("silu", "swiglu")
    return Transformer(
        layers=int(pick(*_LAYERS)),
        hidden=hidden,
        heads=heads,
        kv_heads=heads if latent else _kv_heads(config, heads),
        head_dim=latent.get("head_dim", int(pick("head_dim", default=0) or 0)),
        ffn=int(pick("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", "ffn_size",
                     default=pick("moe_intermediate_size", default=4 * hidden))),
        expert_ffn=int(pick("moe_intermediate_size", default=0)) if experts else 0,
        shared_experts=_shared(config) if experts else 0,
        dense_layers=int(pick("first_k_dense_replace", default=0)) if experts else 0,
        gated=gated,
        vocab=int(pick("vocab_size", default=0)),
        seq=int(pick("max_position_embeddings", "n_positions", "n_ctx", "seq_length", default=2048)),
        experts=experts,
        topk=int(pick("num_experts_per_tok", "moe_topk", default=0)),
        tied=bool(config.get("tie_word_embeddings", kind in ("gpt2", "bloom"))),
        rotary=gated or "rope_theta" in config or "rotary_dim" in config or kind in ("bloom", "falcon"),
        bias=not gated,
        name=name or kind or "transformer",
        **{key: value for key, value in latent.items() if key != "head_dim"},
    )  # fmt: skip


def _latent(pick: Callable[..., Any]) -> dict[str, int]:
    """Latent attention's dimensions in a config; empty without."""
    if not pick("kv_lora_rank") or not pick("qk_nope_head_dim"):
        return {}
    rope = int(pick("qk_rope_head_dim", default=0))
    return {
        "q_lora": int(pick("q_lora_rank", default=0)),
        "kv_lora": int(pick("kv_lora_rank")),
        "rope_dim": rope,
        "head_dim": int(pick("qk_nope_head_dim")) + rope,
        "v_dim": int(pick("v_head_dim", default=0)),
    }


def _kv_heads(config: Mapping[str, Any], heads: int) -> int:
    """Key-value heads; one where a config says multi-query, unless its newer attention has groups (Falcon)."""
    if config.get("multi_query") and not config.get("new_decoder_architecture"):
        return 1
    return int(config.get("num_key_value_heads") or config.get("num_kv_heads") or heads)


def _shared(config: Mapping[str, Any]) -> int:
    """Shared experts, in widths of a routed one."""
    if config.get("n_shared_experts"):
        return int(config["n_shared_experts"])
    width, each = config.get("shared_expert_intermediate_size"), config.get("moe_intermediate_size")
    return round(width / each) if width and each else 0


_LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
_HIDDEN = ("hidden_size", "n_embd", "d_model", "model_dim")
_HEADS = ("num_attention_heads", "n_head", "num_heads", "n_heads")
_GATED = (
    "llama", "mistral", "ministral", "mixtral", "qwen", "gemma", "phi3", "phimoe", "deepseek", "olmo", "granite",
    "cohere", "glm", "smollm", "gpt_oss", "minimax", "ernie4", "exaone", "stablelm", "hunyuan", "dots1",
)  # fmt: skip
"""Beginnings of model types whose feed-forward blocks are gated, whatever their activation is called."""
