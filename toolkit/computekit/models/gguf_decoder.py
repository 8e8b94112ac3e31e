"""GGUF decoders as transformers runs them: llama.cpp's names, fields and order of rows turned into Hugging Face's.

Fields and names are those of llama.cpp's convert_hf_to_gguf.py (https://github.com/ggml-org/llama.cpp), read backwards.
"""

from __future__ import annotations

import logging
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

from ..errors import FileProblem, MissingExtra
from .base import ModelFile, TensorInfo
from .gguf_files import GgufFile

if TYPE_CHECKING:
    import torch

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
_NAMES = {
    "token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}  # fmt: skip
_FIELDS = {
    "hidden_size": "embedding_length", "intermediate_size": "feed_forward_length", "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count", "max_position_embeddings": "context_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
}  # fmt: skip


class GgufDecoder(ModelFile):
    """The weights of a GGUF decoder under transformers' names, and the ``config`` that describes the model."""

    def __init__(self, source: GgufFile) -> None:
        super().__init__(source.path, source.format, source.metadata, source.parts)
        self._source = source
        self.config = _config(source)
        self._names = {_renamed(source, name): name for name in source.tensors}
        self._infos = {new: replace(source.tensors[old], name=new) for new, old in self._names.items()}

    @property
    def tensors(self) -> dict[str, TensorInfo]:
        return self._infos

    def load(self, name: str) -> torch.Tensor:
        tensor = self._source.load(self._names[name])
        kind = re.search(r"self_attn\.([qk])_proj", name)
        if self.config["model_type"] != "llama" or kind is None:
            return tensor
        heads = self.config["num_attention_heads" if kind[1] == "q" else "num_key_value_heads"]
        # llama.cpp rotates neighbouring rows of a head, transformers rows half a head apart
        pairs = tensor.reshape(heads, tensor.shape[0] // heads // 2, 2, *tensor.shape[1:])
        return pairs.transpose(1, 2).reshape(tensor.shape).contiguous()


def runs(source: ModelFile) -> TypeGuard[GgufFile]:
    """Whether ``source`` is a GGUF file of an architecture that transformers can be given."""
    return isinstance(source, GgufFile) and source.fields.get("general.architecture") in ARCHITECTURES


def write_tokenizer(source: Path, folder: Path) -> None:
    """Write the tokenizer and chat template of the GGUF file ``source`` to ``folder`` as transformers does.

    Raises:
        MissingExtra: transformers or gguf is not installed.
        FileProblem: transformers does not know such a tokenizer.
    """
    logging.disable(logging.WARNING)  # what the package's optional dependencies log on import is no concern of users
    try:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(source.absolute().parent, gguf_file=source.name)
        tokenizer.save_pretrained(folder)
    except ImportError:
        raise MissingExtra("transformers", "hf", f"the tokenizer of {source}") from None
    except (OSError, ValueError, KeyError, TypeError, NotImplementedError) as error:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        hint = "convert to a .safetensors file, which has no tokenizer"
        raise FileProblem(source, f"has a tokenizer that transformers cannot read ({first})", hint) from error
    finally:
        logging.disable(logging.NOTSET)


def _config(source: GgufFile) -> dict[str, Any]:
    """config.json of the model; FileProblem if a field is missing or says what transformers is not told here."""
    kind = source.fields["general.architecture"]
    scaling = source.fields.get(f"{kind}.rope.scaling.type", "none")
    if scaling != "none" or "rope_freqs.weight" in source.tensors:
        raise FileProblem(
            source.path, "scales its rotary positions, which is not carried over", "convert it to a .safetensors file"
        )
    config: dict[str, Any] = {"architectures": [ARCHITECTURES[kind]], "model_type": kind, "hidden_act": "silu"}
    for key, field in _FIELDS.items():
        value = source.fields.get(f"{kind}.{field}")
        if not isinstance(value, (int, float)):
            raise FileProblem(source.path, f"has no number {kind}.{field}", "the file is damaged")
        config[key] = float(f"{value:.6g}") if isinstance(value, float) else value
    heads = config["num_attention_heads"]
    config["num_key_value_heads"] = source.fields.get(f"{kind}.attention.head_count_kv", heads)
    config["head_dim"] = source.fields.get(f"{kind}.attention.key_length", config["hidden_size"] // heads)
    config["rope_theta"] = source.fields.get(f"{kind}.rope.freq_base", 10000.0)
    embedding = source.tensors.get("token_embd.weight")
    if embedding is None:
        raise FileProblem(source.path, "has no token_embd.weight", "the file is damaged")
    config["vocab_size"] = embedding.shape[0]
    config["tie_word_embeddings"] = "output.weight" not in source.tensors
    config["attention_bias"] = "blk.0.attn_q.bias" in source.tensors
    for token in ("bos", "eos"):
        config[f"{token}_token_id"] = source.fields.get(f"tokenizer.ggml.{token}_token_id")
    return {**config, "dtype": "float32"}


def _renamed(source: GgufFile, name: str) -> str:
    found = re.fullmatch(r"(?:blk\.(\d+)\.)?(\w+)\.(weight|bias)", name)
    if found is None or found[2] not in _NAMES:
        raise FileProblem(
            source.path, f"holds {name!r}, which has no place in this architecture", "convert it to a .safetensors file"
        )
    return f"{'' if found[1] is None else f'model.layers.{found[1]}.'}{_NAMES[found[2]]}.{found[3]}"
