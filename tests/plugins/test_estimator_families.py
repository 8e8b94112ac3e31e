"""computekit estimator count: families of transformers models whose samples are more than one text."""

from __future__ import annotations

import json

import pytest

from computekit import ComputekitError
from computekit_estimator import count, experts, source, transformer

pytest.importorskip("transformers")

ENCODER_DECODER = {"d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
                   "decoder_attention_heads": 2, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "vocab_size": 96,
                   "max_position_embeddings": 24, "pad_token_id": 0}  # fmt: skip
TEXT = {"model_type": "llama", "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
        "intermediate_size": 64, "vocab_size": 96, "max_position_embeddings": 48}  # fmt: skip
VISION = {"model_type": "clip_vision_model", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
          "intermediate_size": 64, "image_size": 28, "patch_size": 14, "projection_dim": 32}  # fmt: skip


def counted(tmp_path, **config):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    subject = source.from_config_file(path, None)
    return subject, count.counted(subject)


@pytest.mark.parametrize("kind", ["bart", "m2m_100", "pegasus", "marian", "blenderbot"])
def test_encoder_decoders_need_no_values(tmp_path, kind):
    """Their masks look at values; one text without padding has none to look at."""
    _, cost = counted(tmp_path, model_type=kind, **ENCODER_DECODER)
    tokens, width, ffn = 24, 32, 64
    attention = 2 * tokens * 4 * width * width + 4 * tokens * tokens * width
    assert cost.forward == 3 * attention + 2 * (2 * tokens * 2 * width * ffn)
    assert cost.ran_on == "meta" and cost.causal_saving > 0


def test_hybrids_of_state_spaces_and_attention_run(tmp_path):
    _, cost = counted(
        tmp_path, model_type="bamba", hidden_size=32, num_hidden_layers=2, attn_layer_indices=[1], vocab_size=96,
        num_attention_heads=2, num_key_value_heads=1, intermediate_size=64, mamba_n_heads=4, mamba_d_head=16,
        mamba_d_state=8, max_position_embeddings=64,
    )  # fmt: skip
    assert cost.ran_on == "meta" and not cost.idle


def layer(tokens, width, matrices, ffn):
    """FLOPs of a transformer layer, by hand: projections, ``matrices`` of the feed-forward network, attention."""
    return 2 * tokens * (4 * width * width + matrices * width * ffn) + 4 * tokens * tokens * width


def test_one_image_goes_with_a_text(tmp_path):
    subject, cost = counted(tmp_path, model_type="llava", text_config=TEXT, vision_config=VISION)
    patches, width, ffn, tokens = 5, 32, 64, 48
    embedding = 2 * (patches - 1) * width * 3 * 14 * 14
    projector = 2 * (patches - 1) * 2 * width * width
    layers = [child for name, child in cost.by_module.items() if "vision" in name and name.endswith("layers.0")]
    assert layers[0].forward == layer(patches, width, 2, ffn)
    ran = 2 if len([n for n in cost.by_module if "vision" in n and ".layers." in n and n.split(".")[-1] == "1"]) else 1
    text, image = layer(tokens, width, 3, ffn), ran * layer(patches, width, 2, ffn)
    assert cost.forward == text + embedding + image + projector
    assert subject.tokens == tokens


@pytest.mark.parametrize("kind", ["timesformer", "videomae"])
def test_models_of_video_get_a_clip(tmp_path, kind):
    subject, cost = counted(
        tmp_path, model_type=kind, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64,
        image_size=32, patch_size=16, num_frames=4,
    )  # fmt: skip
    assert tuple(subject.kwargs["pixel_values"].shape) == (1, 4, 3, 32, 32)
    assert cost.forward > 0 and cost.ran_on == "meta"


QWEN = {"text_config": {**TEXT, "model_type": "qwen2_vl_text", "num_key_value_heads": 2,
                        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}},
        "vision_config": {"depth": 1, "embed_dim": 32, "num_heads": 2, "hidden_size": 32}}  # fmt: skip


def test_images_of_any_size_come_as_rows_of_patches(tmp_path):
    """The size of their grid is a value that no weight is needed for."""
    subject, cost = counted(tmp_path, model_type="qwen2_vl", **QWEN)
    patches, width, tokens = (224 // 14) ** 2, 32, 48
    block = 2 * patches * 12 * width * width + 4 * patches * patches * width
    merger = 2 * (patches // 4) * (128 * 128 + 128 * 32)
    text = 2 * tokens * (4 * width * width + 3 * width * 64) + 4 * tokens * tokens * width
    assert cost.forward == 2 * patches * 3 * 2 * 14 * 14 * width + block + merger + text
    assert not cost.idle and cost.ran_on == "meta"
    assert subject.notes() == ["one image of 256 patches is counted with the text: 64 image tokens among 48"]


@pytest.mark.parametrize(
    ("config", "note"),
    [
        ({"model_type": "idefics3", "scale_factor": 2, "vision_config": {"image_size": 40, "patch_size": 14,
          "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}},
         "one image of 56 x 56 pixels is counted with the text: 4 image tokens among 48"),
        ({"model_type": "llava_next", "vision_config": VISION, "image_grid_pinpoints": [[28, 56], [56, 28]]},
         "one image of 28 x 28 pixels is counted with the text: 10 image tokens among 48"),
    ],
)  # fmt: skip
def test_images_that_are_cut_or_padded(tmp_path, config, note):
    subject, cost = counted(tmp_path, text_config=TEXT, **config)
    assert subject.notes() == [note] and not cost.idle


def test_clips_that_are_the_main_input(tmp_path):
    subject, cost = counted(
        tmp_path, model_type="vjepa2", hidden_size=32, num_hidden_layers=1, num_attention_heads=2, mlp_ratio=2,
        pred_hidden_size=32, pred_num_attention_heads=2, pred_num_hidden_layers=1, crop_size=32, patch_size=16,
        frames_per_clip=4,
    )  # fmt: skip
    assert tuple(subject.kwargs["pixel_values_videos"].shape) == (1, 4, 3, 32, 32)
    assert cost.forward > 0 and cost.ran_on == "meta" and not cost.idle


@pytest.mark.parametrize("kind", ["blip-2", "instructblip"])
def test_queries_take_the_places_of_an_image_in_the_text(tmp_path, kind):
    small = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    config = {
        "vision_config": {**small, "image_size": 28, "patch_size": 14}, "num_query_tokens": 4,
        "qformer_config": {**small, "encoder_hidden_size": 32, "vocab_size": 96, "max_position_embeddings": 16},
        "text_config": {"model_type": "opt", "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
                        "ffn_dim": 64, "vocab_size": 96, "max_position_embeddings": 48, "word_embed_proj_dim": 32},
    }  # fmt: skip
    _, cost = counted(tmp_path, model_type=kind, image_token_index=5, **config)
    assert cost.forward > 0 and not cost.idle and cost.ran_on == "meta"
    with pytest.raises(ComputekitError, match="'bool' object"):  # no token stands for an image
        counted(tmp_path, model_type=kind, **config)


def test_parts_that_the_sample_does_not_reach_are_named(tmp_path):
    """More tokens of an image than it has patches: no image goes with the text."""
    vision = {**VISION, "model_type": "siglip_vision_model"}
    text = {**TEXT, "model_type": "gemma3_text", "num_key_value_heads": 2, "head_dim": 16}
    subject, cost = counted(
        tmp_path, model_type="gemma3", mm_tokens_per_image=16, vision_config=vision, text_config=text
    )
    assert subject.notes()[0].startswith("the text is counted without image: the model does not run")
    assert any(line.startswith("not run by this sample: vision_tower, ") for line in count._gaps(cost, 1))


def test_images_that_attention_reads_are_part_of_the_pass(tmp_path):
    subject, cost = counted(
        tmp_path, model_type="mllama",
        text_config={**TEXT, "model_type": "mllama_text_model", "num_key_value_heads": 2, "num_hidden_layers": 2,
                     "cross_attention_layers": [1], "vocab_size": 96, "pad_token_id": 0},
        vision_config={"hidden_size": 32, "num_hidden_layers": 1, "num_global_layers": 1, "attention_heads": 2,
                       "intermediate_size": 64, "image_size": 28, "patch_size": 14, "max_num_tiles": 4,
                       "vision_output_dim": 64, "intermediate_layers_indices": [0]},
    )  # fmt: skip
    assert not cost.idle
    assert subject.notes() == ["one image of 28 x 28 pixels is counted with the text"]


def test_models_that_read_text_beside_an_image_have_no_image_tokens(tmp_path):
    small = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    subject, cost = counted(
        tmp_path, model_type="flava", text_config={**small, "vocab_size": 96, "max_position_embeddings": 16},
        image_config={**small, "image_size": 28, "patch_size": 14}, multimodal_config=small, hidden_size=32,
    )  # fmt: skip
    assert cost.forward > 0
    assert all("tokens" not in note for note in subject.notes())


def test_one_sound_goes_with_a_text(tmp_path):
    audio = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 128,
             "num_mel_bins": 8, "max_source_positions": 20}  # fmt: skip
    text = {**TEXT, "num_key_value_heads": 2, "head_dim": 16}
    subject, cost = counted(tmp_path, model_type="voxtral", text_config=text, audio_config=audio)
    positions, width, ffn, tokens = 20, 32, 128, 48
    convolutions = 2 * 2 * positions * width * 8 * 3 + 2 * positions * width * width * 3
    projector = 2 * (positions // 4) * (ffn * width + width * width)
    whole = layer(tokens, width, 3, 64) + convolutions + layer(positions, width, 2, ffn) + projector
    assert cost.forward == whole
    assert not cost.idle
    said = "one sound of a spectrogram of 8 x 40 is counted with the text: 5 sound tokens among 48"
    assert subject.notes() == [said]


def test_layers_of_different_widths_have_no_transformer_dimensions():
    with pytest.raises(ComputekitError, match="its layers differ in width"):
        transformer.from_config({"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4,
                                 "intermediate_size": [128, 256]})  # fmt: skip


def test_experts_that_the_code_runs_needlessly_are_left_out(tmp_path):
    """Llama 4 runs all experts for each token and weighs all but one with zero."""
    small = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2,
             "head_dim": 16, "intermediate_size": 64, "intermediate_size_mlp": 64, "vocab_size": 96,
             "num_local_experts": 4, "num_experts_per_tok": 1, "max_position_embeddings": 48}  # fmt: skip
    subject, cost = counted(tmp_path, model_type="llama4_text", **small)
    tokens, expert = 48, 3 * 32 * 64
    layer = 2 * tokens * (4 * 32 * 32 + 32 * 4 + 2 * expert) + 4 * tokens * tokens * 32  # with router, shared, routed
    assert subject.experts == (4, 1)
    assert cost.forward == 2 * layer and cost.by_module["layers.0"].forward == layer
    assert cost.by_module[""].backward == cost.backward
    needless = 2 * 2 * tokens * 3 * expert
    assert f"all 4 experts for each token, {cost.forward + needless:,} FLOP forward" in subject.experts_note
    assert experts.routed(cost, subject.module, 8, 1, tokens) is None


def test_models_that_are_only_parts_say_so(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "bark"}))
    subject = source.from_config_file(path, None)
    assert subject.parameters and subject.why_no_flops.startswith("the whole has no forward pass, only its parts: sem")


@pytest.mark.parametrize("kind", ["funnel", "depth_anything"])
def test_models_that_have_no_class_of_their_own_for_auto(tmp_path, kind):
    small = {"n_head": 2, "d_head": 16, "d_model": 32, "d_inner": 64, "block_sizes": [1, 1], "vocab_size": 96,
             "max_position_embeddings": 48}  # fmt: skip
    backbone = {"model_type": "dinov2", "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 2,
                "image_size": 28, "patch_size": 14, "reshape_hidden_states": False,
                "out_indices": [1, 2, 3, 4]}  # fmt: skip
    deep = {"backbone_config": backbone, "reassemble_hidden_size": 32, "neck_hidden_sizes": [8, 8, 8, 8],
            "fusion_hidden_size": 8, "head_hidden_size": 8}  # fmt: skip
    subject, cost = counted(tmp_path, model_type=kind, **(small if kind == "funnel" else deep))
    assert type(subject.module).__name__ in ("FunnelModel", "DepthAnythingForDepthEstimation")
    assert cost.forward > 0 and cost.ran_on == "meta"
