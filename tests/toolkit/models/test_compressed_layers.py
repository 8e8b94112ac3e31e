"""Modules on compressed weights compute what their dequantized weights would."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from computekit import FileProblem
from computekit.models import compressed, load_into
from computekit.models.compressed_layers import count_parameters

Rounding = Callable[[torch.Tensor], compressed.QuantizedWeight]

ROUNDINGS: dict[str, Rounding] = {
    "int8": lambda weight: compressed.quantize(weight, 8),
    "int4": lambda weight: compressed.quantize(weight, 4, 4),
    "int8 asymmetric": lambda weight: compressed.quantize(weight, 8, zero_points=True),
    "int4 asymmetric": lambda weight: compressed.quantize(weight, 4, 4, zero_points=True),
    "float8": compressed.quantize_float8,
}


def compress(module: nn.Module, rounding: Rounding) -> dict[str, torch.Tensor]:
    """The module's state_dict with every matrix and kernel compressed."""
    state: dict[str, torch.Tensor] = {}
    for name, tensor in module.state_dict().items():
        big = tensor.ndim > 1 and tensor.is_floating_point()
        state.update(rounding(tensor).store(name) if big else [(name, tensor)])
    return state


def save(path: Path, state: dict[str, torch.Tensor]) -> Path:
    torch.save(state, path)
    return path


def decompress(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    plain = dict(state)
    for name, layout in compressed.find(state).items():
        weight = compressed.QuantizedWeight.restore(name, state.__getitem__, layout)
        for part in layout.parts(name):
            del plain[part]
        plain[name] = weight.dequantize()
    return plain


IDS = torch.tensor([[1, 2], [3, 0]])
LAYERS = [
    (lambda: nn.Linear(6, 5), (torch.randn(3, 6),)),
    (lambda: nn.Conv2d(4, 6, 3, groups=2), (torch.randn(2, 4, 5, 5),)),
    (lambda: nn.ConvTranspose1d(4, 6, 3), (torch.randn(2, 4, 5),)),
    (lambda: nn.Embedding(9, 6, padding_idx=0), (IDS,)),
    (lambda: nn.EmbeddingBag(9, 6), (IDS,)),
    (lambda: nn.LSTM(6, 5, 2, batch_first=True, bidirectional=True), (torch.randn(2, 3, 6),)),
    (lambda: nn.GRU(6, 5), (torch.randn(2, 3, 6),)),
    (lambda: nn.MultiheadAttention(8, 2, batch_first=True), (torch.randn(2, 3, 8),) * 3),
    (lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), (torch.randn(2, 3, 8),)),
    (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(6, 5)), (torch.randn(3, 6),)),
    (lambda: nn.Bilinear(4, 5, 6), (torch.randn(3, 4), torch.randn(3, 5))),
]


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize(("build", "inputs"), LAYERS)
def test_output_is_that_of_the_dequantized_weights(build, inputs, rounding: str, tmp_path: Path) -> None:
    state = compress(build(), ROUNDINGS[rounding])
    module = load_into(build(), save(tmp_path / "m.pt", state))
    reference = build().eval()
    reference.load_state_dict(decompress(state))
    with torch.inference_mode():
        ours, theirs = module(*inputs), reference(*inputs)
    first = (ours[0], theirs[0]) if isinstance(ours, tuple) else (ours, theirs)
    torch.testing.assert_close(*first)
    assert set(module.state_dict()) == set(state)


@pytest.mark.parametrize("bits", [8, 4])
def test_integers_stay_integers_in_memory_and_through_copies(bits: int, tmp_path: Path) -> None:
    state = compress(nn.Linear(64, 64), lambda weight: compressed.quantize(weight, bits, 32 if bits == 4 else None))
    module = copy.deepcopy(load_into(nn.Linear(64, 64), save(tmp_path / "m.pt", state))).to(torch.bfloat16)
    held = sum(t.nbytes for t in (*module.parameters(), *module.buffers()))
    assert held < 64 * 64 * 4 * (0.27 if bits == 8 else 0.19)
    assert module(torch.ones(1, 64, dtype=torch.bfloat16)).dtype == torch.bfloat16
    if bits == 8:
        assert sum(p.numel() for p in module.parameters()) == 64 * 64 + 64


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(9, 6)
        self.head = nn.Linear(6, 9, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.embed(ids))


@pytest.mark.parametrize("left_out", [None, "embed.", "head."])
def test_tied_weights_share_their_integers(left_out: str | None, tmp_path: Path) -> None:
    state = {
        k: v for k, v in compress(Tied(), ROUNDINGS["int8"]).items() if left_out is None or not k.startswith(left_out)
    }
    module = load_into(Tied(), save(tmp_path / "m.pt", state))
    assert module.embed._parameters["weight"] is module.head._parameters["weight"]
    assert module.head.weight_scale is module.embed.weight_scale
    assert module(IDS).shape == (2, 2, 9)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.pop("bias"), "lacks 'bias'"),
        (lambda s: s.update(extra=torch.ones(1)), "holds 'extra'"),
        (lambda s: s.update(compressed.quantize(torch.ones(2, 2)).store("other")), "holds 'other'"),
        (lambda s: s.update(compressed.quantize(torch.ones(5, 5)).store("weight")), r"'weight' has shape \[5, 5\]"),
        (lambda s: s["weight_scale"].fill_(float("nan")), "'weight' holds NaN"),
    ],
)
def test_what_does_not_fit_is_named(change, message: str, tmp_path: Path) -> None:
    state = compress(nn.Linear(6, 5), ROUNDINGS["int8"])
    change(state)
    with pytest.raises(FileProblem, match=message):
        load_into(nn.Linear(6, 5), save(tmp_path / "m.pt", state))


@pytest.mark.parametrize("bits", [8, 4])
def test_weights_take_the_type_of_the_module_not_of_the_file(bits: int, tmp_path: Path) -> None:
    state = compress(nn.Linear(6, 5).bfloat16(), ROUNDINGS[f"int{bits}"])
    module = load_into(nn.Linear(6, 5), save(tmp_path / "m.pt", state))
    assert module.weight.dtype == torch.float32
    assert module(torch.randn(2, 6)).dtype == torch.float32


@pytest.mark.parametrize("bits", [8, 4])
def test_parameters_are_counted_as_the_weights_that_they_stand_for(bits: int, tmp_path: Path) -> None:
    for build in (Tied, lambda: nn.LSTM(6, 5), lambda: nn.Linear(7, 3)):
        module = load_into(build(), save(tmp_path / "m.pt", compress(build(), ROUNDINGS[f"int{bits}"])))
        assert count_parameters(module) == sum(p.numel() for p in build().parameters())
