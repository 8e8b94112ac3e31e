"""Pruning whole modules: dead channels go without a trace, whatever is left runs and can be built anew."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("torch_pruning")

from computekit import ComputekitError, flops, models
from computekit_prune import criteria
from computekit_prune.pruning import NothingRemoved, Pruned, Pruner, TargetOutOfReach
from computekit_prune.removal import Settings

ZOO: dict[str, tuple[dict[str, Any], Callable[[], Tensor]]] = {
    "mlp": ({"hidden": 16, "depth": 2}, lambda: torch.randn(3, 64)),
    "resnet": ({"width": 8, "blocks": [1, 1]}, lambda: torch.randn(3, 1, 8, 8)),
    "vit": ({"dim": 16, "depth": 2, "heads": 2}, lambda: torch.randn(3, 1, 8, 8)),
    "gpt": ({"vocab": 20, "context": 16, "dim": 16, "depth": 2, "heads": 2}, lambda: torch.randint(20, (3, 16))),
}


def settings(ratio: float = 0.5, scope: Any = "uniform", round_to: int = 1) -> Settings:
    return Settings(ratio, scope, criteria.find("l2"), round_to)


def prune(module: nn.Module, arch: models.ArchRef, inputs: tuple[Tensor, ...], how: Settings) -> Pruned:
    return Pruner(module, arch, inputs).prune(how)


def kill_odd_channels(module: nn.Module, width: int) -> None:
    """Zero every odd channel inside ``module``: what makes it and what reads it. ``width`` is kept whole."""
    inside = width if width else -1  # the residual width of a transformer stays, so nothing of it may die
    for name, layer in module.named_modules():
        if isinstance(layer, (nn.Linear, nn.Conv2d)):
            last = name in ("head", "lm_head")
            if not last and (layer.weight.shape[0] != inside or name.endswith(("q", "k", "v"))):
                layer.weight.data[1::2] = 0
                if layer.bias is not None:
                    layer.bias.data[1::2] = 0
            if layer.weight.shape[1] != inside or name.endswith("out"):
                layer.weight.data[:, 1::2] = 0
            if name.endswith(("attention.q", "attention.k")):  # fewer channels change the scale of the scores
                layer.weight.data.zero_()
                layer.bias.data.zero_()
        if isinstance(layer, nn.BatchNorm2d):
            layer.weight.data[1::2] = 0
            layer.bias.data[1::2] = 0


@pytest.mark.parametrize("name", ZOO)
def test_removing_dead_channels_changes_nothing(name: str) -> None:
    torch.manual_seed(0)
    args, sample = ZOO[name]
    module = models.build(models.ArchRef(name, args)).eval()
    first = next(m for m in module.modules() if isinstance(m, (nn.Linear, nn.Conv2d)))
    first_weight = first.weight.data.clone()
    kill_odd_channels(module, {"vit": 16, "gpt": 16}.get(name, 0))
    first.weight.data[::2] = first_weight[::2]  # the input is no channel that may die
    inputs = (sample(),)
    with torch.no_grad():
        before = module(*inputs)
        pruned = prune(module, models.ArchRef(name, args), inputs, settings())
        torch.testing.assert_close(pruned.module(*inputs), before, rtol=1e-4, atol=1e-5)
    assert all(after * 2 == channels for channels, after in pruned.layers.values())


@pytest.mark.parametrize("name", ZOO)
@pytest.mark.parametrize("scope", ["uniform", "global"])
def test_zoo_gets_smaller_and_leaves_its_input_alone(name: str, scope: str) -> None:
    torch.manual_seed(0)
    args, sample = ZOO[name]
    module = models.build(models.ArchRef(name, args)).eval()
    before = {key: tensor.clone() for key, tensor in module.state_dict().items()}
    inputs = (sample(),)
    pruned = prune(module, models.ArchRef(name, args), inputs, settings(0.4, scope)).module
    assert sum(p.numel() for p in pruned.parameters()) < 0.8 * sum(p.numel() for p in module.parameters())
    assert flops.count(pruned, inputs).forward < flops.count(module, inputs).forward
    assert all(torch.equal(tensor, before[key]) for key, tensor in module.state_dict().items())


def test_halving_the_width_leaves_a_quarter() -> None:
    """Both sides of a layer shrink, so weights fall with the square of the width."""
    arch = models.ArchRef("resnet", {"width": 16})
    module = models.build(arch).eval()
    pruned = prune(module, arch, (torch.zeros(1, 1, 8, 8),), settings()).module
    share = sum(p.numel() for p in pruned.parameters()) / sum(p.numel() for p in module.parameters())
    assert 0.24 < share < 0.27


def test_rounding_leaves_multiples() -> None:
    args, sample = ZOO["resnet"]
    arch = models.ArchRef("resnet", args)
    pruned = prune(models.build(arch), arch, (sample(),), settings(0.4, "global", 4))
    assert all(after % 4 == 0 for _, after in pruned.layers.values())


def test_target_of_flops_is_met_with_the_smallest_ratio() -> None:
    args, sample = ZOO["resnet"]
    arch, inputs = models.ArchRef("resnet", args), (sample(),)
    module = models.build(arch)
    whole = flops.count(module, inputs).forward
    pruned, ratio = Pruner(module, arch, inputs).prune_to_flops(settings(), 0.4)
    assert flops.count(pruned.module, inputs).forward <= 0.4 * whole
    less = prune(module, arch, inputs, settings(ratio - 1 / 64))
    assert flops.count(less.module, inputs).forward > 0.4 * whole


def test_target_that_kept_layers_exceed_is_refused() -> None:
    args, sample = ZOO["gpt"]
    arch = models.ArchRef("gpt", args)
    with pytest.raises(TargetOutOfReach, match="nearly all channels that may go leaves 0"):
        Pruner(models.build(arch), arch, (sample(),)).prune_to_flops(settings(), 0.05)


class FixedHeads(nn.Module):
    """Attention whose code, not its weights, says how large a head is."""

    def __init__(self) -> None:
        super().__init__()
        self.num_heads, self.head_dim = 2, 4
        self.q, self.k, self.v, self.out = (nn.Linear(8, 8) for _ in range(4))
        self.mlp = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 3))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            layer(x).view(*x.shape[:2], self.num_heads, self.head_dim).transpose(1, 2)
            for layer in (self.q, self.k, self.v)
        )
        y = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return self.mlp(self.out(y))


def test_attention_with_fixed_heads_is_left_whole() -> None:
    pruned = prune(FixedHeads(), models.ArchRef(f"{__name__}:FixedHeads"), (torch.zeros(2, 5, 8),), settings())
    assert pruned.module.q.out_features == 8
    assert pruned.layers["mlp.0"] == (32, 16)
    assert {kept.name: kept.reason for kept in pruned.kept}["v"] == "the code fixes its size"


class Shuffled(nn.Module):
    """Convolutions between which the channels are dealt out anew, as in ShuffleNet."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 16, 3), nn.Conv2d(16, 12, 3)
        self.third = nn.Conv2d(12, 5, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        x = x.unflatten(1, (2, -1)).transpose(1, 2).flatten(1, 2)
        return self.third(torch.relu(self.second(x)))


class Upsampled(nn.Module):
    """Channels become pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 16, 3), nn.Conv2d(4, 12, 3)
        self.third = nn.Conv2d(12, 5, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.pixel_shuffle(self.first(x), 2)
        return self.third(torch.relu(self.second(x)))


@pytest.mark.parametrize("kind", [Shuffled, Upsampled])
def test_channels_that_change_their_order_are_left_whole(kind: type[nn.Module]) -> None:
    pruned = prune(kind(), models.ArchRef(f"{__name__}:{kind.__name__}"), (torch.zeros(2, 1, 8, 8),), settings())
    assert pruned.layers == {"second": (12, 6)}
    assert pruned.module.first.out_channels == 16


def linear() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 3))


def test_model_that_is_only_an_output_layer_is_refused() -> None:
    with pytest.raises(NothingRemoved, match=r"no layer may shrink: 1 \(output\)"):
        prune(linear(), models.ArchRef(f"{__name__}:linear"), (torch.zeros(2, 4),), settings())


def test_rounding_that_keeps_everything_is_refused() -> None:
    args, sample = ZOO["mlp"]
    arch = models.ArchRef("mlp", args)
    with pytest.raises(NothingRemoved, match="multiples of 16 keeps all"):
        prune(models.build(arch), arch, (sample(),), settings(0.4, "uniform", 16))


def fickle() -> nn.Module:
    """Built with another activation each time: what is saved would not be what is loaded."""
    fickle.calls = getattr(fickle, "calls", 0) + 1  # type: ignore[attr-defined]
    activation = nn.ReLU() if fickle.calls % 2 else nn.Tanh()  # type: ignore[attr-defined]
    return nn.Sequential(nn.Linear(4, 8), activation, nn.Linear(8, 2))


def test_architecture_that_builds_something_else_is_refused() -> None:
    arch = models.ArchRef(f"{__name__}:fickle")
    with pytest.raises(ComputekitError, match="computes something else"):
        prune(models.build(arch), arch, (torch.randn(2, 4),), settings())
