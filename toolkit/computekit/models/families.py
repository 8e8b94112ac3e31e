"""A guess at the architecture family of a file without code, from the names and shapes of its tensors."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from .base import TensorInfo


@dataclass(frozen=True)
class Family:
    """A family and the names that speak for it: all of ``signs`` must occur."""

    name: str
    signs: tuple[str, ...]


# More particular families first: the first one whose signs all occur is the guess.
FAMILIES = (
    Family("CLIP", (r"visual|vision_model", r"text_model|transformer\.resblocks", r"logit_scale")),
    Family("Stable-Diffusion-like UNet", (r"(down|input)_blocks\.\d", r"mid(dle)?_block", r"(up|output)_blocks")),
    Family("variational autoencoder", (r"encoder\.", r"decoder\.", r"quant_conv|fc_mu|fc_var|logvar")),
    Family("Whisper", (r"encoder\.conv1", r"decoder\..*encoder_attn|decoder\..*cross_attn")),
    Family("wav2vec 2.0", (r"feature_extractor\.conv_layers", r"pos_conv_embed")),
    Family("DETR", (r"class_(embed|labels)", r"bbox_(embed|predictor)", r"query_(embed|position)")),
    Family("YOLO", (r"model\.\d+\.(cv\d|m\.\d|conv)", r"model\.\d+\.(cv2|cv3|dfl|anchors|m)\.")),
    Family("mixture-of-experts Llama-like decoder", (r"self_attn\.q_proj", r"experts\.\d+\.|block_sparse_moe")),
    Family("Llama-like decoder", (r"self_attn\.(q_proj|qkv_proj)", r"mlp\.(gate_proj|gate_up_proj)", r"layers\.\d+")),
    Family("Llama-like decoder (llama.cpp names)", (r"blk\.\d+\.attn_q", r"blk\.\d+\.ffn_gate")),
    Family("decoder (llama.cpp names)", (r"blk\.\d+\.attn", r"blk\.\d+\.ffn")),
    Family("OPT-like decoder", (r"layers\.\d+\.self_attn\.q_proj", r"decoder\.layers\.\d+\.fc1", r"embed_positions")),
    Family("GPT-2-like decoder", (r"(^|\.)h\.\d+\.attn\.c_attn", r"wte", r"wpe")),
    Family("GPT-NeoX-like decoder", (r"attention\.query_key_value", r"dense_h_to_4h")),
    Family("T5", (r"SelfAttention\.q", r"EncDecAttention|DenseReluDense|relative_attention_bias")),
    Family("Mamba", (r"mixer\.A_log|mixer\.in_proj", r"mixer\.conv1d")),
    Family("DistilBERT", (r"transformer\.layer\.\d+\.attention\.q_lin",)),
    Family("BERT-like encoder", (r"encoder\.layer\.\d+\.attention\.self\.query", r"word_embeddings")),
    Family("Swin transformer", (r"relative_position_bias_table",)),
    Family("vision transformer", (r"patch_embed|conv_proj", r"pos_embed|position_embeddings")),
    Family("ConvNeXt", (r"dwconv|stages\.\d+\.blocks\.\d+\.conv_dw|block\.\d+\.layer_scale",)),
    Family("EfficientNet", (r"_depthwise_conv|conv_dw", r"_se_|\.se\.conv_reduce")),
    Family("MobileNet", (r"features\.\d+\.conv\.\d+\.\d+\.weight",)),
    Family("DenseNet", (r"denseblock\d+\.denselayer\d+",)),
    Family("Inception", (r"Mixed_\d[a-z]|inception\d[a-z]",)),
    Family("bottleneck ResNet", (r"layer\d\.\d+\.conv3", r"layer\d\.\d+\.bn1")),
    Family("ResNet", (r"layer\d\.\d+\.conv1", r"layer\d\.\d+\.bn1")),
    Family("VGG or AlexNet", (r"^(module\.)?features\.\d+\.weight", r"classifier\.\d+\.weight")),
    Family("U-Net", (r"(down|enc(oder)?)\d*\.", r"(up|dec(oder)?)\d*\.", r"bottleneck|outc|out_conv|final_conv")),
    Family("transformer", (r"self_attn\.in_proj_weight|attn\.qkv|attention\.", r"linear1|mlp|ffn|feed_forward|fc1")),
    Family("LSTM or GRU network", (r"weight_ih_l\d", r"weight_hh_l\d")),
)  # fmt: skip


def guess(tensors: Mapping[str, TensorInfo]) -> tuple[str, str] | None:
    """The family and why, or None if nothing speaks for any. It is a guess; only an architecture's code is certain."""
    for family in FAMILIES:
        found = [next((name for name in tensors if re.search(sign, name)), None) for sign in family.signs]
        if all(found):
            name = _recurrent(tensors) if family.name.startswith("LSTM") else family.name
            return name, "names such as " + ", ".join(str(sign) for sign in found)
    kinds = [len(info.shape) for info in tensors.values() if info.name.endswith("weight")]
    if any(dimensions in (3, 4, 5) for dimensions in kinds):
        return "convolutional network", "weights of three or more dimensions"
    if any(dimensions == 2 for dimensions in kinds):
        return "multi-layer perceptron", "weights are matrices, and no name speaks for another family"
    return None


def _recurrent(tensors: Mapping[str, TensorInfo]) -> str:
    """LSTM or GRU: the hidden weights are (gates * hidden, hidden), with four gates or three."""
    for name, info in tensors.items():
        if re.search(r"weight_hh_l\d+$", name) and len(info.shape) == 2 and info.shape[1]:
            gates = info.shape[0] // info.shape[1]
            return {4: "LSTM network", 3: "GRU network", 1: "recurrent network"}.get(gates, "LSTM or GRU network")
    return "LSTM or GRU network"
