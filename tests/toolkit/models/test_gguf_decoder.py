"""GGUF decoders: the folder that transformers runs has the weights and the shape of the model before llama.cpp's."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from computekit.errors import FileProblem
from computekit.models import gguf_decoder, huggingface, open_model

gguf = pytest.importorskip("gguf")
transformers = pytest.importorskip("transformers")

NAMES = {new: old for old, new in gguf_decoder._NAMES.items()}


def written(path: Path, kind: str, model: torch.nn.Module, **fields: float) -> Path:
    """The weights of ``model`` as llama.cpp's converter writes them: q and k of a llama have their rows in pairs."""
    config = model.config
    writer = gguf.GGUFWriter(path, kind)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(5000.0)
    for key, value in fields.items():
        writer.add_string(f"{kind}.{key.replace('__', '.')}", str(value))
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        stem, _, leaf = name.rpartition(".")
        layer = stem.split(".")[2] if ".layers." in stem else None
        inner = stem.split(f"layers.{layer}.")[-1] if layer else stem
        if kind == "llama" and inner in ("self_attn.q_proj", "self_attn.k_proj"):
            heads = config.num_attention_heads if "q_proj" in inner else config.num_key_value_heads
            pairs = tensor.reshape(heads, 2, tensor.shape[0] // heads // 2, *tensor.shape[1:])
            tensor = pairs.transpose(1, 2).reshape(tensor.shape)
        writer.add_tensor(f"{f'blk.{layer}.' if layer else ''}{NAMES[inner]}.{leaf}", tensor.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def small(kind: str, tied: bool) -> torch.nn.Module:
    torch.manual_seed(0)
    made = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3"}[kind]
    config = getattr(transformers, f"{made}Config")(
        vocab_size=50, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, head_dim=8,
        num_key_value_heads=2, tie_word_embeddings=tied, rope_theta=5000.0, max_position_embeddings=64,
    )  # fmt: skip
    model: torch.nn.Module = getattr(transformers, f"{made}ForCausalLM")(config).eval()
    return model


@pytest.mark.parametrize(("kind", "tied"), [("llama", True), ("llama", False), ("qwen2", True), ("qwen3", False)])
def test_the_model_computes_what_it_did(tmp_path: Path, kind: str, tied: bool) -> None:
    model = small(kind, tied)
    source = open_model(written(tmp_path / "m.gguf", kind, model))
    assert gguf_decoder.runs(source)
    decoder = gguf_decoder.GgufDecoder(source)
    again = huggingface.build(decoder.config)
    again.load_state_dict({name: decoder.load(name) for name in decoder.tensors}, strict=not tied)
    ids = torch.arange(20)[None] % 50
    with torch.no_grad():
        assert torch.equal(again(ids).logits, model(ids).logits)


def test_what_is_not_carried_over_is_refused(tmp_path: Path) -> None:
    source = open_model(written(tmp_path / "m.gguf", "llama", small("llama", True), rope__scaling__type="yarn"))
    assert gguf_decoder.runs(source)
    with pytest.raises(FileProblem, match="rotary positions"):
        gguf_decoder.GgufDecoder(source)
    assert not gguf_decoder.runs(open_model(written(tmp_path / "n.gguf", "mamba", small("llama", True))))
