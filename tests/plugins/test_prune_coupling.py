"""Which channels prune may remove, for the zoo and for the layers that people build models from."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("torch_pruning")

from computekit import ComputekitError, MissingExtra, models
from computekit_prune.coupling import Coupled, Structure, analyse

IMAGE = (torch.zeros(2, 1, 8, 8),)
TOKENS = (torch.zeros(2, 16, dtype=torch.int64),)
GPT = models.ArchRef("gpt", {"vocab": 20, "context": 16, "dim": 16, "depth": 1, "heads": 4})
VIT = models.ArchRef("vit", {"dim": 16, "depth": 1, "heads": 4})
RESNET = models.ArchRef("resnet", {"width": 4, "blocks": [1, 1]})


def structure_of(arch: models.ArchRef, inputs: tuple[Tensor, ...]) -> Structure:
    return analyse(models.build(arch).eval(), inputs)


def kept(structure: Structure) -> dict[str, str]:
    return {entry.name: entry.reason for entry in structure.kept}


def names(structure: Structure) -> list[str]:
    return [group.name for group in structure.groups]


def test_resnet_prunes_everything_but_the_output_and_ties_the_residual_path() -> None:
    structure = structure_of(RESNET, IMAGE)
    assert kept(structure) == {"head": "output"}
    assert names(structure) == ["stem", "blocks.0.conv1", "blocks.1.conv1", "blocks.1.shortcut.0"]
    stem = structure.groups[0]
    assert len(stem.members) == 5  # made by the stem and conv2, read by two conv1 and the shortcut


def test_vit_keeps_its_residual_width_and_shrinks_heads_and_neurons() -> None:
    structure = structure_of(VIT, IMAGE)
    assert names(structure) == ["blocks.0.attention.v", "blocks.0.feed_forward.up"]
    assert structure.groups[0].blocks == 4
    assert kept(structure) == {"head": "output", "blocks.0.feed_forward.down": "tied to a parameter that no layer owns"}


def test_gpt_keeps_what_is_tied_to_the_embedding() -> None:
    structure = structure_of(GPT, TOKENS)
    assert names(structure) == ["blocks.0.attention.v", "blocks.0.feed_forward.up"]
    assert set(kept(structure)) == {"lm_head", "blocks.0.feed_forward.down"}


class FusedAttention(nn.Module):
    """q, k and v in one layer: removing a channel of it would mix the three up."""

    def __init__(self) -> None:
        super().__init__()
        self.num_heads = 2
        self.qkv = nn.Linear(8, 24)
        self.out = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(1, 2).flatten(2))


def test_fused_attention_is_kept() -> None:
    model = nn.Sequential(nn.Linear(8, 8), FusedAttention(), nn.Linear(8, 3))
    structure = analyse(model, (torch.zeros(2, 5, 8),))
    assert "1.qkv" not in names(structure)
    assert "attention" in kept(structure)["1.qkv"]


def test_torch_attention_is_kept() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before = nn.Linear(4, 8)
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
            self.after = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))

        def forward(self, x: Tensor) -> Tensor:
            x = self.before(x)
            y, _ = self.attention(x, x, x)
            return self.after(y)

    structure = analyse(Model(), (torch.zeros(2, 5, 4),))
    assert names(structure) == ["after.0"]
    assert "MultiheadAttention cannot be rebuilt" in kept(structure)["before"]


def one_group(*layers: nn.Module) -> Coupled:
    structure = analyse(nn.Sequential(*layers), (torch.zeros(2, 4, 6, 6),))
    (group,) = structure.groups
    return group


def test_grouped_convolution_shrinks_alike_in_each_group() -> None:
    group = one_group(nn.Conv2d(4, 12, 1), nn.Conv2d(12, 6, 1, groups=3))
    assert (group.channels, group.blocks, group.alike) == (12, 3, True)


def test_depthwise_convolution_follows_its_input() -> None:
    group = one_group(nn.Conv2d(4, 12, 1), nn.Conv2d(12, 12, 3, groups=12), nn.Conv2d(12, 5, 1))
    assert (group.channels, group.blocks, len(group.members)) == (12, 1, 3)


def test_group_norm_keeps_its_groups_equal() -> None:
    group = one_group(nn.Conv2d(4, 12, 1), nn.GroupNorm(3, 12), nn.Conv2d(12, 5, 1))
    assert (group.blocks, group.alike) == (3, False)


def test_norm_without_weights_is_kept_because_a_file_would_not_tell_its_size() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8, elementwise_affine=False), nn.Linear(8, 2))
    assert "LayerNorm" in kept(analyse(model, (torch.zeros(2, 4),)))["0"]


def test_flattened_channels_count_with_all_their_readers() -> None:
    model = nn.Sequential(nn.Conv2d(1, 3, 1, bias=False), nn.Flatten(), nn.Linear(12, 2, bias=False))
    (group,) = analyse(model, (torch.zeros(2, 1, 2, 2),)).groups
    total = sum(torch.zeros(3).index_add_(0, m.roots, m.weights.square().sum(1)) for m in group.members)
    expected = model[0].weight.square().sum((1, 2, 3)) + model[2].weight.view(2, 3, 4).square().sum((0, 2))
    torch.testing.assert_close(total, expected.detach())


def test_model_that_does_not_run_is_one_line() -> None:
    with pytest.raises(ComputekitError, match="cannot be traced"):
        analyse(nn.Linear(4, 2), (torch.zeros(2, 5),))


def test_missing_extra_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torch_pruning", None)
    with pytest.raises(MissingExtra, match=r"computekit\[prune\]"):
        analyse(nn.Linear(4, 2), (torch.zeros(2, 4),))
