"""computekit.flops: exact for contractions, honest about everything else."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from computekit import flops


class Attention(nn.Module):
    """Multi-head attention with one projection, so that every product is known."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.heads, self.causal = heads, causal

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)


class NeedsValues(nn.Module):
    """Control flow on values: cannot run on the meta device."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.LSTM(8, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if x.sum().item() > 1e9 else self.inner(x)[0]


@given(
    batch=st.integers(1, 3),
    groups=st.integers(1, 3),
    per_group=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    kernel=st.integers(1, 4),
    stride=st.integers(1, 3),
    size=st.integers(4, 9),
)
@settings(max_examples=25, deadline=None)
def test_convolution_counts_each_multiply_add(batch, groups, per_group, kernel, stride, size):
    module = nn.Conv2d(groups * per_group[0], groups * per_group[1], kernel, stride, groups=groups)
    x = torch.zeros(batch, groups * per_group[0], size, size)
    side = (size - kernel) // stride + 1
    expected = 2 * batch * side * side * groups * per_group[1] * per_group[0] * kernel * kernel
    cost = flops.count(module, x)
    assert cost.forward == expected
    assert cost.macs == expected // 2
    assert cost.backward == expected  # the input needs no gradient: the weight's alone


@given(st.lists(st.integers(1, 6), min_size=1, max_size=3), st.integers(1, 8), st.integers(1, 8))
@settings(max_examples=20, deadline=None)
def test_linear_counts_every_leading_dimension(leading, inputs, outputs):
    cost = flops.count(nn.Linear(inputs, outputs), torch.zeros(*leading, inputs))
    assert cost.forward == 2 * torch.Size(leading).numel() * inputs * outputs


def test_transposed_convolution():
    cost = flops.count(nn.ConvTranspose2d(3, 5, 4, stride=2), torch.zeros(2, 3, 6, 6), backward=False)
    assert cost.forward == 2 * 2 * 6 * 6 * 3 * 5 * 4 * 4
    assert cost.backward is None


@pytest.mark.parametrize("causal", [False, True])
def test_attention_is_counted_in_full_and_its_causal_part_is_known(causal):
    batch, length, width, heads = 2, 5, 16, 2
    projection = 2 * batch * length * width * 3 * width
    attention = 4 * batch * length * length * width
    cost = flops.count(Attention(width, heads, causal), torch.zeros(batch, length, width))
    assert cost.forward == projection + attention
    assert cost.backward == projection + 2 * attention
    kept = attention * (length + 1) / (2 * length) if causal else attention
    assert cost.forward_causal == projection + kept


@pytest.mark.parametrize("fused", ["_scaled_dot_product_flash_attention_for_cpu"])
def test_fused_attention_on_the_cpu_is_no_silent_zero(fused):
    class Eager(Attention):
        def forward(self, x):
            assert sum(p.sum() for p in self.parameters()).item() < 1e9
            return super().forward(x)

    on_cpu = flops.count(Eager(16, 2, True), torch.zeros(2, 5, 16))
    on_meta = flops.count(Attention(16, 2, True), torch.zeros(2, 5, 16))
    assert on_cpu.ran_on == "cpu" and on_meta.ran_on == "meta"
    assert fused in on_cpu.by_op
    assert (on_cpu.forward, on_cpu.backward, on_cpu.causal_saving) == (
        on_meta.forward,
        on_meta.backward,
        on_meta.causal_saving,
    )


@pytest.mark.parametrize(("kind", "gates"), [(nn.LSTM, 4), (nn.GRU, 3)])
def test_recurrent_layers(kind, gates):
    steps, batch, inputs, hidden = 5, 2, 8, 16
    one_direction = lambda width: 2 * steps * batch * gates * hidden * (width + hidden)  # noqa: E731
    cost = flops.count(kind(inputs, hidden, 2, bidirectional=True), torch.zeros(steps, batch, inputs))
    assert cost.forward == 2 * one_direction(inputs) + 2 * one_direction(2 * hidden)


def test_fused_recurrent_kernel_on_the_cpu_counts_the_same():
    cost = flops.count(NeedsValues(), torch.zeros(5, 2, 8))
    assert cost.ran_on == "cpu"
    assert cost.forward == flops.count(nn.LSTM(8, 16), torch.zeros(5, 2, 8)).forward


def test_encoder_layer_in_eval_mode_shows_its_products():
    layer = nn.TransformerEncoderLayer(16, 2, dim_feedforward=32, batch_first=True)
    x = torch.zeros(2, 5, 16)
    assert flops.count(layer.eval(), x).forward == flops.count(layer.train(), x).forward > 0


def test_embedding_is_a_lookup():
    cost = flops.count(nn.Embedding(10, 4), torch.zeros(2, 3, dtype=torch.long))
    assert cost.forward == 0 and cost.forward_other == 0 and not cost.unknown


def test_norms_and_activations_are_counted_apart():
    cost = flops.count(nn.Sequential(nn.LayerNorm(6), nn.ReLU()), torch.zeros(4, 6))
    assert cost.forward == 0
    assert cost.forward_other == 4 * 6 * 8 + 4 * 6


def test_an_operator_without_formula_is_listed_with_its_share():
    class Odd(nn.Module):
        def forward(self, x):
            return torch.linalg.inv(x @ x)

    cost = flops.count(Odd(), torch.zeros(4, 4))
    assert cost.forward == 2 * 4 * 4 * 4
    gap = next(gap for gap in cost.unknown if gap.name == "linalg_inv_ex")
    assert gap.calls == 1 and 0 < gap.share < 1


def test_backward_is_attributed_to_modules():
    module = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    cost = flops.count(module, torch.zeros(3, 4))
    assert cost.by_module["0"].backward == cost.by_module["0"].forward  # no gradient by the input
    assert cost.by_module["2"].backward == 2 * cost.by_module["2"].forward
    assert cost.by_module[""].backward == cost.backward
    assert cost.by_module["1"].activation_bytes == 3 * 8 * 4


def test_the_module_is_left_alone():
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    flops.count(module, torch.ones(3, 4))
    assert all(torch.equal(before[name], tensor) for name, tensor in module.state_dict().items())
    assert all(p.grad is None for p in module.parameters())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in module.modules())


def test_counts_do_not_accumulate():
    module = nn.Linear(4, 4)
    first = flops.count(module, torch.zeros(3, 4))
    assert flops.count(module, torch.zeros(3, 4)).total == first.total == 2 * first.forward


def test_wrong_inputs_are_one_line():
    with pytest.raises(flops.CountFailed, match="does not run on these example inputs"):
        flops.count(nn.Linear(4, 4), torch.zeros(3, 5))


def test_a_model_without_weights_that_needs_values_says_so():
    with torch.device("meta"):
        module = NeedsValues()
    with pytest.raises(flops.CountFailed, match="without weights: "):
        flops.count(module, torch.zeros(5, 2, 8))


class Branches(nn.Module):
    """Weights that the branches of a condition close over get no gradient from it."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other, self.last = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        branch = torch.cond(torch.tensor(True), lambda y: self.one(y), lambda y: self.other(y), (x,))
        return self.last(x) + branch


def test_what_no_gradient_reaches_is_named():
    cost = flops.count(Branches(), torch.zeros(2, 8))
    assert cost.forward == 2 * (2 * 2 * 8 * 8)
    assert cost.without_gradient == {"one": 72} and cost.idle == {"other": 72}
    assert flops.count(nn.Linear(8, 8).requires_grad_(False), torch.zeros(2, 8)).without_gradient == {}


class LooksAtItsInput(nn.Module):
    """As many products as the mask leaves; the mask is written to, and selects."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 16)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        mask = torch.arange(x.shape[0], device=self.inner.weight.device) < lengths
        assert mask.any().item()
        hidden = self.inner(x)[mask]
        return hidden.index_put((torch.tensor([0]),), hidden[:1]).split(lengths.tolist())[0]


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_values_that_need_no_weights_are_known(device):
    with torch.device(device):
        module = LooksAtItsInput()
    cost = flops.count(module, (torch.zeros(5, 8), torch.tensor([3])))
    assert (cost.forward, cost.ran_on, cost.outputs) == (2 * 5 * 8 * 16, "meta", {"": ((3, 16),)})
    assert cost.backward == 2 * 5 * 8 * 16


def test_grouped_products_of_a_mixture_of_experts():
    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(4, 16, 32, dtype=torch.bfloat16))

        def forward(self, x: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
            return torch._grouped_mm(x, self.weight, offs=ends)

    rows = torch.zeros(64, 16, dtype=torch.bfloat16)
    cost = flops.count(Experts(), (rows, torch.tensor([16, 32, 48, 64], dtype=torch.int32)))
    assert cost.forward == 2 * 64 * 16 * 32  # each row meets one expert, not four
    assert cost.backward == cost.forward


def test_more_operators_than_allowed_are_refused_and_no_fewer():
    module, sample = nn.Sequential(*[nn.Linear(4, 4) for _ in range(8)]), torch.zeros(1, 4)
    calls = sum(cost.calls for cost in flops.count(module, sample).by_op.values())
    assert flops.count(module, sample, max_operators=calls).forward == 8 * 32
    with pytest.raises(flops.TooManyOperators, match=f"more than {calls - 1} operators"):
        flops.count(module, sample, max_operators=calls - 1)
