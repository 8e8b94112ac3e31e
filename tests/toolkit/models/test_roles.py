"""What a tensor is, told from names and shapes alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from computekit import open_model
from computekit.models import TensorInfo, roles


def infos(tensors: dict[str, torch.Tensor]) -> dict[str, TensorInfo]:
    return {
        name: TensorInfo(name, tuple(t.shape), t.dtype, t.nbytes, t.untyped_storage().data_ptr() or name)
        for name, t in tensors.items()
    }


def roles_of(module: nn.Module) -> dict[str, str]:
    found = infos(module.state_dict())
    return {name: roles.of(info, found) for name, info in found.items()}


def test_modules_of_pytorch() -> None:
    layers = nn.ModuleDict(
        {
            "fc": nn.Linear(4, 5),
            "conv": nn.Conv2d(3, 4, 3),
            "up": nn.ConvTranspose1d(3, 4, 3),
            "bn": nn.BatchNorm2d(4),
            "affine": nn.LayerNorm((3, 4)),
            "lstm": nn.LSTM(3, 4),
            "attention": nn.MultiheadAttention(4, 2),
            "words": nn.Embedding(9, 4),
        }
    )
    assert roles_of(layers) == {
        "fc.weight": "linear",
        "fc.bias": "bias",
        "conv.weight": "conv",
        "conv.bias": "bias",
        "up.weight": "conv",
        "up.bias": "bias",
        "bn.weight": "norm",
        "bn.bias": "bias",
        "bn.running_mean": "statistics",
        "bn.running_var": "statistics",
        "bn.num_batches_tracked": "not float",
        "affine.weight": "norm",
        "affine.bias": "bias",
        "lstm.weight_ih_l0": "linear",
        "lstm.weight_hh_l0": "linear",
        "lstm.bias_ih_l0": "bias",
        "lstm.bias_hh_l0": "bias",
        "attention.in_proj_weight": "linear",
        "attention.in_proj_bias": "bias",
        "attention.out_proj.weight": "linear",
        "attention.out_proj.bias": "bias",
        "words.weight": "embedding",
    }


@pytest.mark.parametrize(
    ("name", "shape", "role"),
    [
        ("transformer.wte.weight", (100, 8), "embedding"),
        ("transformer.wpe.weight", (16, 8), "position"),
        ("bert.embeddings.position_embeddings.weight", (16, 8), "position"),
        ("bert.embeddings.word_embeddings.weight", (100, 8), "embedding"),
        ("pos_embed", (1, 16, 8), "position"),
        ("layers.0.relative_position_bias_table", (49, 4), "position"),
        ("cls_token", (1, 1, 8), "ambiguous"),
        ("conv2d_10.w_0", (16, 3, 3, 3), "conv"),
        ("fc_0.w_0", (200, 2), "linear"),
        ("conv12_expand_weights", (200, 32, 1, 1), "conv"),
        ("onnx::MatMul_1582", (1024, 3072), "linear"),
        ("onnx::Conv_7", (8, 4, 3, 3), "conv"),
        ("onnx::Add_12", (8, 4), "ambiguous"),
        ("conv2d_10.b_0", (2, 16), "ambiguous"),
        ("mixer.A_log", (8, 4), "ambiguous"),
        ("h.0.attn.c_attn.weight", (8, 24), "linear"),
        ("decomposition.weight", (8, 8), "linear"),
        ("layer_norm.weight", (4, 4), "norm"),
        ("net.0.parametrizations.weight.original1", (4, 4), "linear"),
        ("experts.weight", (0, 4), "ambiguous"),
    ],
)
def test_single_tensors(name: str, shape: tuple[int, ...], role: str) -> None:
    found = infos({name: torch.zeros(shape)})
    assert roles.of(found[name], found) == role


@pytest.mark.parametrize("dtype", [torch.int8, torch.bool, torch.complex64, torch.float8_e4m3fn])
def test_types_that_are_no_ordinary_floats(dtype: torch.dtype) -> None:
    found = infos({"fc.weight": torch.zeros(4, 4, dtype=dtype)})
    assert roles.of(found["fc.weight"], found) == "not float"


def test_a_head_tied_to_an_embedding_is_one() -> None:
    table = torch.zeros(9, 4)
    found = infos({"wte.weight": table, "lm_head.weight": table})
    assert roles.of(found["lm_head.weight"], found) == "embedding"


@pytest.mark.parametrize(
    ("models", "copies"),
    [
        (("model", "ema"), ["ema."]),
        (("state_dict", "model_ema"), ["model_ema."]),
        (("net", "best_net", "swa"), ["best_net.", "swa."]),
        (("student", "teacher"), ["teacher."]),
        (("generator", "discriminator"), []),
    ],
)
def test_a_copy_of_the_model_is_counted_once(models: tuple[str, ...], copies: list[str], tmp_path: Path) -> None:
    state = {"fc.weight": torch.ones(3, 4), "bn.running_mean": torch.ones(3)}
    wrapped = {f"module.{name}": tensor for name, tensor in state.items()}  # averages often keep a wrapper's prefix
    document = {key: {name: t.clone() for name, t in (wrapped if number else state).items()}
                for number, key in enumerate(models)}  # fmt: skip
    torch.save(document, tmp_path / "a.pt")
    source = open_model(tmp_path / "a.pt")
    assert len(source.tensors) == 2 * len(models)
    assert roles.copies(source) == copies
    assert roles.count_parameters(source) == 12 * (len(models) - len(copies))


def test_a_teacher_of_another_shape_is_a_model_of_its_own(tmp_path: Path) -> None:
    torch.save({"student": {"w": torch.ones(3, 4)}, "teacher": {"w": torch.ones(6, 8)}}, tmp_path / "a.pt")
    assert roles.count_parameters(open_model(tmp_path / "a.pt")) == 60
