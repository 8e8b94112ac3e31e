"""One sample for a transformers model: text, image, sound or numbers of the sizes that its config says."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Container
from typing import Any

import torch

from .source import TOKENS

_SAMPLES = 16_000
"""Samples of a waveform: one second."""
_SIDE = 224
"""Pixels of a side of an image of any size."""


def main_inputs(module: Any, hf: Any, shape: tuple[int, ...] | None) -> tuple[dict[str, Any], int | None]:
    """Keyword arguments of one forward call of a transformers model, and how many tokens they hold."""
    name = getattr(module, "main_input_name", "input_ids")
    if name == "pixel_values":
        takes = inspect.signature(module.forward).parameters
        return {name: torch.zeros(shape)} if shape else images(hf, takes)[0], None
    if name == "pixel_values_videos":
        return {name: torch.zeros(shape or _image(hf))}, None
    tokens = shape[-1] if shape else _length(hf)
    written = min(tokens, getattr(hf, "max_target_positions", None) or tokens)
    decoder = {"decoder_input_ids": torch.zeros((1, written), dtype=torch.long)} if hf.is_encoder_decoder else {}
    if name == "input_features":
        return {name: torch.zeros(shape or _features(hf)), **decoder}, None
    if name == "input_values":
        return {name: torch.zeros(shape or (1, _SAMPLES)), **decoder}, None
    if name == "past_values":
        channels = getattr(hf, "num_input_channels", None)
        return {name: torch.zeros(shape or (1, hf.context_length, *([channels] if channels else ())))}, None
    if name == "inputs":  # Perceiver reads vectors
        return {name: torch.zeros(shape or (1, tokens, hf.d_model))}, tokens
    given: dict[str, Any] = {name: torch.zeros(shape or (1, tokens), dtype=torch.long), **decoder}
    if "use_cache" in inspect.signature(module.forward).parameters:
        given["use_cache"] = False
    return given, tokens


def all_inputs(module: Any, hf: Any, given: dict[str, Any]) -> dict[str, Any]:
    """``given`` and whatever else the model's forward takes of text, image and sound: for models of several kinds."""
    ids = given.get("input_ids", torch.zeros((1, _length(hf)), dtype=torch.long))
    place, several = (getattr(hf, name, None) for name in ("image_token_index", "num_query_tokens"))
    if isinstance(place, int) and isinstance(several, int):  # as many tokens of the text are the image's
        ids = ids.clone()
        ids[:, :several] = place
    takes = inspect.signature(module.forward).parameters
    makers: dict[str, Callable[[], Any]] = {
        "input_ids": lambda: ids,
        "qformer_input_ids": lambda: torch.zeros_like(ids[:, : hf.qformer_config.max_position_embeddings]),
        "input_features": lambda: torch.zeros(_features(getattr(hf, "audio_config", None) or hf)),
        "input_values": lambda: torch.zeros(_sound(hf)),
    }
    pixels = images(hf, takes)[0] if "pixel_values" in takes else {}
    rest = {name: value for name, value in given.items() if name != "input_values"}
    return {**{name: make() for name, make in makers.items() if name in takes}, **pixels, **rest}


def images(hf: Any, takes: Container[str]) -> list[dict[str, Any]]:
    """One image in the forms in which a call that ``takes`` these arguments may want it, the likeliest first.

    Whole, in a batch of images, with copies for the tiles it is cut to, or as rows of patches with the size of their
    grid. Pixels are not zero, which some models take for padding.
    """
    shape = _image(hf)
    *_, channels, height, width = shape
    patch = _number(hf, "patch_size") or 1
    rows, columns = height // patch, width // patch
    if "image_grid_thw" in takes:
        each = channels * (_number(hf, "temporal_patch_size") or 1) * patch * patch
        return [
            {"pixel_values": torch.ones(rows * columns, each), "image_grid_thw": torch.tensor([[1, rows, columns]])}
        ]
    if "spatial_shapes" in takes:
        patches = torch.ones(1, rows * columns, channels * patch * patch)
        mask = torch.ones(patches.shape[:2], dtype=torch.long)
        return [{"pixel_values": patches, "pixel_attention_mask": mask,
                 "spatial_shapes": torch.tensor([[rows, columns]])}]  # fmt: skip
    if "aspect_ratio_ids" in takes:
        tiles = _number(hf, "max_num_tiles") or 1
        return [{"pixel_values": torch.ones(1, 1, tiles, channels, height, width),
                 "aspect_ratio_ids": torch.ones((1, 1), dtype=torch.long),
                 "aspect_ratio_mask": torch.ones((1, 1, tiles), dtype=torch.long)}]  # fmt: skip
    size = {"image_sizes": torch.tensor([[height, width]])} if "image_sizes" in takes else {}
    forms = [shape, (1, 1, *shape[1:])]
    if grids := getattr(hf, "image_grid_pinpoints", None):  # the model takes as many tiles as the image needs
        most = max(math.ceil(rows / height) * math.ceil(columns / width) for rows, columns in grids)
        forms.insert(0, (1, most + 1, *shape[1:]))
    # where sizes are optional not every tower takes them
    return [{"pixel_values": torch.ones(form), **given} for given in ([size, {}] if size else [{}]) for form in forms]


def _length(hf: Any) -> int:
    """Tokens of a sample: what the positions of the model, or of its parts for text, allow, up to a limit."""
    parts = [hf, *(getattr(hf, name, None) for name in ("text_config", "encoder", "decoder"))]
    limits = [getattr(part, "max_position_embeddings", None) for part in parts]
    return min([TOKENS, *(most for most in limits if isinstance(most, int) and most > 0)])


def sounds(hf: Any, takes: Container[str]) -> list[dict[str, Any]]:
    """One sound in the forms in which a call that ``takes`` these arguments may want it, the likeliest first.

    A waveform, or a spectrogram with its bins before its frames or after them, and what says how long it is.
    """
    audio = getattr(hf, "audio_config", None) or getattr(hf, "encoder_config", None) or hf
    if "input_features" not in takes:
        return [{"input_values": torch.ones(_sound(audio))}, {"input_values": torch.ones(1, 1, _SAMPLES)}]
    forms = []
    first = _features(audio)
    for shape in (first, (1, first[2], first[1])):
        frames = max(shape)
        lengths = {
            "input_features_mask": torch.ones((1, frames), dtype=torch.long),
            "feature_attention_mask": torch.ones((1, frames), dtype=torch.long),
            "audio_feature_lengths": torch.tensor([frames]),
        }
        named = {name: value for name, value in lengths.items() if name in takes}
        forms.append({"input_features": torch.ones(shape), **named})
    return forms


def _parts(hf: Any) -> list[Any]:
    """A config and those parts of it that may describe images."""
    vision = getattr(hf, "vision_config", None)
    parts = [hf, vision, getattr(hf, "backbone_config", None), getattr(vision, "backbone_config", None)]
    return [part for part in parts if part is not None]


def _number(hf: Any, *names: str) -> int:
    """The first number of one of these names in a config and its parts for images; of a pair, its first; else 0."""
    for part in _parts(hf):
        for name in names:
            value = getattr(part, name, None)
            value = value[0] if isinstance(value, (list, tuple)) and value else value
            if isinstance(value, int) and value:
                return value
    return 0


def _image(hf: Any) -> tuple[int, ...]:
    """One image, or the frames of one clip, of the size that the config or the part of it for images says.

    Without one it is 224 pixels. Where patches are merged, sides are whole numbers of what is merged.
    """
    sized = next((part for part in _parts(hf) if getattr(part, "image_size", None)), hf)
    patch, several = _number(hf, "patch_size"), _number(hf, "num_patches")
    size = (
        getattr(sized, "image_size", None)
        or getattr(sized, "crop_size", None)
        or (math.isqrt(several) * patch if several and patch else _SIDE)
    )
    sides = size if isinstance(size, (list, tuple)) else (size, size)
    if merged := _number(hf, "spatial_merge_size", "scale_factor", "downsample_factor"):
        sides = tuple(-(-side // (patch * merged)) * patch * merged for side in sides)
    image = (_number(hf, "num_channels", "in_channels", "in_chans") or 3, *sides)
    frames = getattr(sized, "num_frames", None) or getattr(sized, "frames_per_clip", None)
    return (1, frames, *image) if frames else (1, *image)


def _sound(hf: Any) -> tuple[int, ...]:
    """A waveform, with its channels where the config has them, or the spectrogram that some call input values."""
    if getattr(hf, "num_mel_bins", None) and getattr(hf, "max_length", None):
        return (1, hf.max_length, hf.num_mel_bins)
    channels = getattr(hf, "audio_channels", None)
    return (1, channels, _SAMPLES) if channels else (1, _SAMPLES)


def _features(hf: Any) -> tuple[int, ...]:
    """A mel spectrogram: bins before frames in Whisper's kind, after them in others."""
    names = ("num_mel_bins", "input_feat_per_channel", "input_dim")
    bins = next((value for name in names if (value := getattr(hf, name, None))), 80)
    if hasattr(hf, "max_source_positions") and hasattr(hf, "num_mel_bins"):
        return (1, bins, 2 * hf.max_source_positions)
    return (1, 1000, bins)
