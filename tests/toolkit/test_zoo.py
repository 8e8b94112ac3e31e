"""The built-in architectures: shapes, names, and fitting a data set."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from computekit import host, zoo
from computekit.datasets import from_arrays, from_text, load_data
from computekit.errors import ComputekitError, UnknownName
from computekit.models import ArchRef, build

_OUTPUT = {"mlp": (3, 10), "resnet": (3, 10), "vit": (3, 10), "gpt": (3, 128, 256)}


@pytest.mark.parametrize("name", sorted(_OUTPUT))
def test_example_runs(name: str) -> None:
    architecture = host.current().architecture(name)
    module = build(ArchRef(name)).eval()
    assert architecture.example is not None
    example = architecture.example(3)
    assert module(*example).shape == _OUTPUT[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(_OUTPUT))
def test_exports(name: str) -> None:
    architecture = host.current().architecture(name)
    module = build(ArchRef(name)).eval()
    assert architecture.example is not None
    example = architecture.example(3)
    exported = torch.export.export(module, example).module()
    assert torch.allclose(exported(*example), module(*example), atol=1e-5)


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("mlp", {"in_features": 7, "classes": 3, "hidden": 5, "depth": 3}),
        ("resnet", {"in_channels": 3, "classes": 4, "width": 8, "blocks": [1, 2], "stem_stride": 2}),
        ("vit", {"image_size": 12, "patch": 3, "in_channels": 3, "classes": 4, "dim": 16, "depth": 1, "heads": 2}),
        ("gpt", {"vocab": 50, "context": 9, "dim": 16, "depth": 1, "heads": 2}),
    ],
)
def test_example_follows_the_arguments(name: str, args: dict[str, Any]) -> None:
    architecture = host.current().architecture(name)
    assert architecture.example is not None
    logits = build(ArchRef(name, args))(*architecture.example(2, **args))
    assert logits.shape[-1] == args.get("classes", args.get("vocab"))


def test_transformers_are_plain_linear_layers() -> None:
    for name in ("vit", "gpt"):
        kinds = {type(m) for m in build(ArchRef(name)).modules() if not list(m.children())}
        assert nn.Linear in kinds and nn.MultiheadAttention not in kinds


def test_gpt_ties_its_head_and_sees_only_the_past() -> None:
    module = build(ArchRef("gpt", {"vocab": 20, "context": 8, "dim": 16, "depth": 2, "heads": 2})).eval()
    assert module.lm_head.weight is module.token.weight
    tokens = torch.randint(0, 20, (1, 8))
    changed = tokens.clone()
    changed[0, 5:] = (tokens[0, 5:] + 1) % 20
    with torch.no_grad():
        a, b = module(tokens), module(changed)
    assert torch.allclose(a[0, :5], b[0, :5], atol=1e-6) and not torch.allclose(a[0, 5:], b[0, 5:], atol=1e-6)


def test_arguments_follow_the_data_unless_given() -> None:
    digits = load_data("digits")
    assert zoo.for_data("mlp", None, digits) == ArchRef("mlp", {"in_features": 64, "classes": 10})
    assert zoo.for_data("resnet", {"width": 4}, digits).args == {
        "in_channels": 1, "classes": 10, "stem_stride": 1, "width": 4,
    }  # fmt: skip
    assert zoo.for_data("vit", None, load_data("mnist5k")).args["patch"] == 7
    assert zoo.for_data("a.b:c", {"x": 1}, digits) == ArchRef("a.b:c", {"x": 1})
    text = from_text("t", b"abcd" * 100, "", window=8)
    assert zoo.for_data("gpt", None, text).args == {"vocab": 256, "context": 8}


def test_an_architecture_that_does_not_suit_the_data_says_so() -> None:
    digits, text = load_data("digits"), from_text("t", b"abcd" * 100, "", window=8)
    features = from_arrays("f", torch.ones(30, 4).numpy(), (torch.arange(30) % 3).numpy(), "")
    wide = from_arrays("w", torch.ones(30, 8, 12).numpy(), (torch.arange(30) % 3).numpy(), "")
    for name, data, message in [
        ("gpt", digits, "is for language-modeling, but data digits is classification"),
        ("resnet", text, "is for classification, but data t is language-modeling; use gpt"),
        ("resnet", features, "needs images; a sample of f has shape 4; use mlp"),
        ("vit", wide, "needs square images; data w has 8x12"),
    ]:
        with pytest.raises(ComputekitError, match=message):
            zoo.for_data(name, None, data)
    with pytest.raises(UnknownName, match="did you mean resnet"):
        zoo.for_data("resnt", None, digits)


@pytest.mark.parametrize(
    ("name", "args", "message"),
    [
        ("resnet", {"widht": 3}, "unknown argument of architecture 'resnet': 'widht'; did you mean width"),
        ("resnet", {"width": -3}, "cannot be built with .width=-3."),
        ("mlp", {"hidden": 1.5}, "cannot be built"),
        ("vit", {"patch": 3}, "image_size 8 is not a multiple of patch 3"),
        ("gpt", {"dim": 10, "heads": 4}, "dim 10 is not a multiple of heads 4"),
    ],
)
def test_arguments_that_make_no_model_are_one_line(name: str, args: dict[str, Any], message: str) -> None:
    with pytest.raises(ComputekitError, match=message):
        build(ArchRef(name, args))
