"""Modules on fixed grids that came from a file: the same as files, and floats where integers cannot be used."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from computekit import ComputekitError, FileProblem, load_into
from computekit.models import compressed, int8_static
from computekit_quantize import static

from .networks import IMAGE, NETS, Branching, Optional, Residual, conversions, make, save


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
