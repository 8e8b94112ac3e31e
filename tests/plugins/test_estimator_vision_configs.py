"""computekit estimator count: image classifiers of transformers against the multiply-adds that their papers give."""

from __future__ import annotations

import json

import pytest

from computekit_estimator import count, source

pytest.importorskip("transformers")

REGNET_Y_4GF = {"depths": [2, 6, 12, 2], "hidden_sizes": [128, 192, 512, 1088], "groups_width": 64, "layer_type": "y"}
EFFICIENTNET_B0 = {"width_coefficient": 1.0, "depth_coefficient": 1.0, "image_size": 224, "hidden_dim": 1280}


@pytest.mark.parametrize(
    ("kind", "architecture", "config", "gmacs", "rounding"),
    [
        ("resnet", "ResNet", {}, 4.09, 0.005),
        ("convnext", "ConvNext", {}, 4.46, 0.005),
        ("swin", "Swin", {}, 4.5, 0.05),
        ("regnet", "RegNet", REGNET_Y_4GF, 4.0, 0.05),
        ("efficientnet", "EfficientNet", EFFICIENTNET_B0, 0.39, 0.005),
        ("vit", "ViT", {}, 17.6, 0.05),
    ],
)
def test_published_multiply_adds(tmp_path, kind, architecture, config, gmacs, rounding):
    path = tmp_path / "config.json"
    named = {"model_type": kind, "architectures": [f"{architecture}ForImageClassification"], "num_labels": 1000}
    path.write_text(json.dumps({**named, **config}))
    subject = source.from_config_file(path, None)
    assert tuple(subject.kwargs["pixel_values"].shape) == (1, 3, 224, 224)
    assert count.counted(subject).macs / 1e9 == pytest.approx(gmacs, abs=rounding)
