"""Modules that compute on fixed grids: close to the original, in integers from layer to layer, the same as files."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from computekit import ComputekitError, FileProblem, load_into
from computekit.models import ArchRef, build, compressed, int8_program, int8_static
from computekit_quantize import static

pytestmark = pytest.mark.skipif(bool(int8_static.available()), reason=int8_static.available())


def conv(a: int, b: int, kernel: int = 3, **words) -> nn.Conv2d:
    return nn.Conv2d(a, b, kernel, padding=kernel // 2, **words)


class Forked(nn.Module):
    """The convolution's own output is used beside the normalized one: BatchNorm must not be folded into it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.last = conv(3, 8), nn.BatchNorm2d(8), conv(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(x)
        return self.last(F.relu(self.norm(y)) + y)


class Residual(nn.Module):
    """The input of the block is added after the block, and used again after that."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.a, self.b, self.last = conv(3, 8), conv(8, 8), conv(8, 8), conv(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.first(x), inplace=True)
        y = self.b(self.a(x).relu())
        y += x
        return self.last(y.relu_()) + self.last(x)


class Joined(nn.Module):
    """Concatenation, chunks and a channel shuffle: values move, as integers."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = conv(3, 8), conv(3, 8), conv(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.cat([F.relu(self.a(x)), F.relu(self.b(x))], 1)
        y = y.view(x.shape[0], 2, 8, y.size(2), y.size(3)).transpose(1, 2).flatten(1, 2)
        left, right = y.chunk(2, dim=1)
        return self.c(left) - self.c(F.max_pool2d(right, 3, 1, 1))


class NormAndActivation(nn.BatchNorm2d):
    """As in timm: checks the shape, normalizes by the function, and applies an activation function."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch._assert(x.ndim == 4, "images only")
        y = F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, self.training, 0.1, self.eps)
        return self.act(y)


class Shuffled(nn.Module):
    """Half of the channels pass by each block, as in ShuffleNet: one grid for all that is ever joined."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.a, self.b, self.last = conv(3, 8), conv(4, 4), conv(4, 4), conv(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.first(x))
        for layer in (self.a, self.b):
            kept, changed = x.chunk(2, 1)
            x = torch.cat((kept, F.relu(layer(changed))), dim=1)
            x = x.view(x.size(0), 2, 4, x.size(2), x.size(3)).transpose(1, 2).contiguous().view(x.size(0), 8, 10, 8)
        return self.last(x).view(x.size(0), -1)


class Gated(nn.Module):
    """Squeeze and excitation, with floats where integers cannot do it."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.squeeze, self.b = conv(3, 8), nn.Linear(8, 8), conv(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.silu(self.a(x))
        gate = torch.sigmoid(self.squeeze(y.mean((2, 3))))
        return self.b(y * gate[:, :, None, None])


class Shared(nn.Module):
    """One convolution, called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.twice = conv(3, 8), conv(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.twice(F.relu(self.twice(F.relu(self.first(x)))))


class Branching(nn.Module):
    """Looks at values, so that it cannot be traced; what is inside can."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(conv(3, 8), nn.BatchNorm2d(8), nn.ReLU(), conv(8, 4))
        self.alone = conv(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.body(x)
        return self.alone(y) if y.sum() > -1e9 else y


class Optional(nn.Module):
    """Arguments with defaults, one of them a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 12), nn.Linear(12, 5)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None, scale: float = 2.0) -> torch.Tensor:
        y = F.gelu(self.a(x)) * scale
        return self.b(y if mask is None else y * mask)


class Lines(nn.Module):
    """One-dimensional, with pooling and a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm = nn.Conv1d(3, 8, 5, padding="same"), nn.BatchNorm1d(8)
        self.pool, self.b, self.c = nn.MaxPool1d(2), nn.Conv1d(8, 8, 3, padding=1), nn.Conv1d(8, 4, 4, padding="same")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pool(F.relu(self.norm(self.a(x.flatten(2)))))
        return self.c(F.relu(self.b(x) + x))


IMAGE = (3, 10, 8)
NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], tuple[int, int] | None]] = {
    # a factory, the shape of a sample, and how often the program rounds floats and goes back to them; None if no value
    # can stay in integers, so that each layer is a program of its own
    "resnet": (lambda: build(ArchRef("resnet", {"width": 8})), (1, 8, 8), (2, 0)),
    "mlp": (lambda: build(ArchRef("mlp", {"in_features": 24, "hidden": 16})), (24,), (1, 0)),
    "forked": (Forked, IMAGE, (2, 0)),
    "residual": (Residual, IMAGE, (1, 0)),
    "joined": (Joined, IMAGE, (1, 0)),
    "timm": (lambda: nn.Sequential(conv(3, 8), NormAndActivation(8), conv(8, 4)), IMAGE, (1, 0)),
    "shuffled": (Shuffled, IMAGE, (1, 0)),
    "gated": (Gated, IMAGE, (3, 0)),
    "shared": (Shared, IMAGE, (1, 0)),
    "optional": (Optional, (4, 6), (2, 0)),
    "lines": (Lines, (3, 24), (1, 0)),
    "mobile": (
        lambda: nn.Sequential(
            conv(3, 8), nn.BatchNorm2d(8), nn.ReLU6(), conv(8, 8, groups=8), nn.BatchNorm2d(8), nn.Hardswish(),
            conv(8, 4, 1),
        ),
        IMAGE,
        (1, 0),
    ),
    "vgg": (
        lambda: nn.Sequential(
            conv(3, 8), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Dropout(), nn.Flatten(), nn.Linear(160, 12),
            nn.ReLU(inplace=True), nn.Dropout(), nn.Linear(12, 4),
        ),
        IMAGE,
        (1, 0),
    ),
    "volume": (
        lambda: nn.Sequential(nn.Conv3d(2, 6, 3, padding=1), nn.BatchNorm3d(6), nn.ReLU(), nn.Conv3d(6, 3, 2)),
        (2, 5, 6, 4),
        (1, 0),
    ),
    "preactivation": (
        lambda: nn.Sequential(nn.BatchNorm2d(3), nn.ReLU(), conv(3, 8), nn.GELU(), conv(8, 4)), IMAGE, (2, 0)
    ),
    "transposed": (
        lambda: nn.Sequential(
            conv(3, 8), nn.ReLU(), conv(8, 8), nn.ConvTranspose2d(8, 4, 2, 2), nn.ReLU(), conv(4, 4)
        ),
        IMAGE,
        (2, 0),
    ),
}  # fmt: skip


def make(name: str) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    factory, shape, _ = NETS[name]
    module = factory().eval()
    for part in module.modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            nn.init.normal_(part.weight)
            nn.init.normal_(part.bias)
            nn.init.normal_(part.running_mean)
            nn.init.uniform_(part.running_var, 0.5, 2)
    return module, torch.randn(16, *shape) + 0.3


def save(module: nn.Module, x: torch.Tensor, path: Path, observer: str = "min-max") -> list[str]:
    """Write the quantized state_dict; returns the names of what was not traced."""
    grids, untraced = static.calibrate(module, static.layers_of(module), x.split(8), observer)
    state: dict[str, torch.Tensor] = {}
    for name, tensor in module.state_dict().items():
        layer = name.rpartition(".")[0]
        if tensor.ndim > 1:
            state.update(compressed.quantize(tensor).store(name))
            state.update(grids[layer].store(layer) if layer in grids else [])
        else:
            state[name] = tensor
    torch.save(state, path)
    return untraced


def conversions(module: nn.Module) -> tuple[int, int] | None:
    """How often the program of ``module`` rounds floats to integers, and turns integers back into floats."""
    if "_int8" not in module.__dict__:
        return None
    parts = list(module.__dict__["_int8"].program.modules())
    kinds = int8_program._ToIntegers, int8_program._ToFloats
    rounded, floats = (sum(type(part) is kind for part in parts) for kind in kinds)
    return rounded, floats


@pytest.mark.parametrize("name", NETS)
def test_a_network_gives_what_it_gave(name: str, tmp_path: Path) -> None:
    module, x = make(name)
    untraced = save(module, x, tmp_path / "m.pt")
    assert untraced == []
    loaded = load_into(NETS[name][0](), tmp_path / "m.pt")
    with torch.no_grad():
        exact, ours = module(x), loaded(x)
        assert ours.shape == exact.shape
        error = (ours - exact).square().mean().sqrt() / exact.std()
        assert error < 0.06
        assert not torch.equal(ours, exact)
    assert conversions(loaded) == NETS[name][2]


@pytest.mark.parametrize("name", NETS)
def test_results_do_not_depend_on_the_batch(name: str, tmp_path: Path) -> None:
    module, x = make(name)
    save(module, x, tmp_path / "m.pt")
    loaded = load_into(NETS[name][0](), tmp_path / "m.pt")
    with torch.no_grad():
        together = loaded(torch.cat([x, 50 * x]))
        assert torch.equal(together[:3], loaded(x[:3]))
        assert torch.equal(together[5:6], loaded(x[5:6]))


def test_the_file_and_copies_keep_their_names_and_values(tmp_path: Path) -> None:
    module, x = make("resnet")
    save(module, x, tmp_path / "m.pt")
    loaded = load_into(NETS["resnet"][0](), tmp_path / "m.pt")
    with torch.no_grad():
        first = loaded(x)
    stored = torch.load(tmp_path / "m.pt")
    assert stored.keys() == loaded.state_dict().keys()
    assert all(torch.equal(tensor, stored[name]) for name, tensor in loaded.state_dict().items())
    torch.save(loaded.state_dict(), tmp_path / "again.pt")
    again = load_into(NETS["resnet"][0](), tmp_path / "again.pt")
    with torch.no_grad():
        assert torch.equal(again(x), first)
        assert torch.equal(copy.deepcopy(loaded)(x), first)
        half = copy.deepcopy(loaded).bfloat16()
        assert half(x.bfloat16()).dtype == torch.bfloat16
        assert torch.cosine_similarity(half(x.bfloat16()).float(), first).min() > 0.99
        assert torch.equal(loaded(x), first)


@pytest.mark.parametrize("how", ["train", "gradient", "hook", "empty", "double"])
def test_other_calls_run_the_own_code_on_floats(how: str, tmp_path: Path) -> None:
    module, x = make("residual")
    save(module, x, tmp_path / "m.pt")
    loaded = load_into(Residual(), tmp_path / "m.pt")
    plain = Residual().eval()
    state = torch.load(tmp_path / "m.pt")
    weights = compressed.find(state)
    plain.load_state_dict({
        name: compressed.QuantizedWeight.restore(name, state.__getitem__, weights[name]).dequantize()
        if name in weights else state[name] for name in plain.state_dict()
    })  # fmt: skip
    if how == "train":
        torch.testing.assert_close(loaded.train()(x), plain(x))
    elif how == "gradient":
        inputs = [x.clone().requires_grad_(), x.clone().requires_grad_()]
        for each, net in zip(inputs, (loaded, plain), strict=True):
            net(each).sum().backward()
        torch.testing.assert_close(inputs[0].grad, inputs[1].grad)
    elif how == "hook":
        seen: list[torch.Size] = []
        loaded.a.register_forward_hook(lambda layer, args, output: seen.append(output.shape))
        with torch.no_grad():
            ours = loaded(x)
        assert len(seen) == 1
        assert (ours - plain(x)).abs().max() < 0.1 * ours.abs().max()
    elif how == "empty":
        assert loaded(x[:0]).shape == (0, 4, 10, 8)
    else:
        with torch.no_grad():
            torch.testing.assert_close(loaded.double()(x.double()).float(), loaded.float()(x), rtol=0, atol=1e-4)


def test_a_mask_that_was_not_traced_is_not_forgotten(tmp_path: Path) -> None:
    module, x = make("optional")
    save(module, x, tmp_path / "m.pt")
    loaded, mask = load_into(Optional(), tmp_path / "m.pt"), torch.zeros(12)
    with torch.no_grad():
        assert (loaded(x, mask) - module(x, mask)).abs().max() < 0.05
        assert (loaded(x, mask=mask) - loaded(x, mask)).abs().max() == 0
        assert torch.equal(loaded(x=x), loaded(x))
        assert not torch.allclose(loaded(x, scale=1.0), loaded(x))


def test_what_cannot_be_traced_computes_part_by_part(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module, x = Branching().eval(), torch.randn(8, *IMAGE)
    assert save(module, x, tmp_path / "m.pt") == [""]
    loaded = load_into(Branching(), tmp_path / "m.pt")
    with torch.no_grad():
        exact, ours = module(x), loaded(x)
    assert (ours - exact).square().mean().sqrt() < 0.05 * exact.std()
    assert conversions(loaded.body) == (1, 0)
    assert conversions(loaded.alone) == (1, 0)


class Stepping(nn.Module):
    """Counts its calls, which a graph does not."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.calls = nn.Linear(4, 4), nn.Linear(4, 4), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.b(torch.relu(self.a(x))) * self.calls


def test_a_graph_that_computes_something_else_is_not_used(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module, x = Stepping().eval(), torch.randn(64, 4)
    assert save(module, x, tmp_path / "m.pt") == [""]
    loaded = load_into(Stepping(), tmp_path / "m.pt")
    with torch.no_grad():
        assert torch.allclose(3 * loaded(x), [loaded(x), loaded(x)][1], atol=1e-5)
    assert "a.output_scale" not in torch.load(tmp_path / "m.pt")


def test_a_value_that_is_changed_in_place_and_read_again_is_not_traced(tmp_path: Path) -> None:
    class Changed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.a(x)
            F.relu(y.view(-1), inplace=True)
            return self.b(y)

    module, x = Changed().eval(), torch.randn(64, 4)
    assert save(module, x, tmp_path / "m.pt") == [""]
    with torch.no_grad():
        assert (load_into(Changed(), tmp_path / "m.pt")(x) - module(x)).abs().max() < 0.1


def test_layers_that_never_ran_and_recurrent_ones_stay_in_floats(tmp_path: Path) -> None:
    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.head, self.spare = nn.LSTM(5, 6, batch_first=True), nn.Linear(6, 3), nn.Linear(6, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.rnn(x)[0])

    module, x = Tagger().eval(), torch.randn(8, 7, 5)
    save(module, x, tmp_path / "m.pt")
    state = torch.load(tmp_path / "m.pt")
    assert "head.input_scale" in state
    assert "spare.input_scale" not in state
    with torch.no_grad():
        assert (load_into(Tagger(), tmp_path / "m.pt")(x) - module(x)).abs().max() < 0.05


def test_broken_values_are_named(tmp_path: Path) -> None:
    module, x = make("vgg")
    with torch.no_grad():
        module[5].weight[0, 0] = float("inf")
    with pytest.raises(ComputekitError, match="NaN or infinity"):
        save(module, x, tmp_path / "m.pt")


def test_inputs_can_be_rounded_alone() -> None:
    module, x = make("mlp")
    grids, _ = static.calibrate(module, static.layers_of(module), [x], "min-max")
    with torch.no_grad():
        exact = module(x)
        with static.rounded_inputs(module, {"head": grids["head"]}):
            rounded = module(x)
        assert torch.equal(module(x), exact)
    assert 0 < (rounded - exact).abs().max() < 0.02


def test_code_around_a_program_may_make_views_of_what_it_gives(tmp_path: Path) -> None:
    class Viewing(Branching):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = super().forward(x)
            return y.view(len(y), -1)

    module, x = Viewing().eval(), torch.randn(8, *IMAGE)
    save(module, x, tmp_path / "m.pt")
    with torch.no_grad():
        assert load_into(Viewing(), tmp_path / "m.pt")(x).shape == (8, 320)


def test_a_cpu_without_the_kernels_computes_in_floats_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, x = make("residual")
    save(module, x, tmp_path / "m.pt")
    monkeypatch.setattr(int8_static, "available", lambda: "this CPU is too old")
    with pytest.warns(UserWarning, match="this CPU is too old; layers compute in floats"):
        loaded = load_into(Residual(), tmp_path / "m.pt")
    with torch.no_grad():
        assert (loaded(x) - module(x)).abs().max() < 0.1
    assert loaded.state_dict().keys() == torch.load(tmp_path / "m.pt").keys()


@pytest.mark.parametrize(
    ("name", "value"), [("0.input_scale", float("nan")), ("0.output_scale", -1.0), ("0.input_zero_point", 1000)]
)
def test_a_damaged_grid_is_named(name: str, value: float, tmp_path: Path) -> None:
    module, x = make("mobile")
    save(module, x, tmp_path / "m.pt")
    state = torch.load(tmp_path / "m.pt")
    state[name] = torch.tensor([value])
    torch.save(state, tmp_path / "m.pt")
    with pytest.raises(FileProblem, match=f"{name}.*makes no grid"):
        load_into(NETS["mobile"][0](), tmp_path / "m.pt")
