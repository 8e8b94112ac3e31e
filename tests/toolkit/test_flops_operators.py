"""computekit.flops on operators and modules that counters miss: each count is worked out by hand."""

from __future__ import annotations

import threading
import warnings

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from computekit import flops


class Calls(nn.Module):
    """A module whose forward is ``function``, with parameters of its own."""

    def __init__(self, function, *parameters: torch.Tensor) -> None:
        super().__init__()
        self.function = function
        self.p = nn.ParameterList([nn.Parameter(parameter) for parameter in parameters])

    def forward(self, *inputs):
        return self.function(self.p, *inputs)


def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.zeros(*shape, dtype=dtype)


@pytest.mark.parametrize(
    ("function", "shapes", "expected"),
    [
        (lambda _, a, b, c: torch.einsum("bij,bjk,kl->bil", a, b, c), [(2, 3, 4), (2, 4, 5), (5, 6)],
         2 * 2 * 3 * 4 * 5 + 2 * 2 * 3 * 5 * 6),
        (lambda _, a, b, c: torch.baddbmm(a, b, c), [(2, 3, 5), (2, 3, 4), (2, 4, 5)], 2 * 2 * 3 * 4 * 5),
        (lambda _, a, b, c: torch.addbmm(a, b, c), [(3, 5), (2, 3, 4), (2, 4, 5)], 2 * 2 * 3 * 4 * 5),
        (lambda _, q, k, v: scaled_dot_product_attention(q, k, v, enable_gqa=True),
         [(1, 8, 16, 32), (1, 2, 16, 32), (1, 2, 16, 32)], 4 * 8 * 16 * 16 * 32),
    ],
)  # fmt: skip
def test_products(function, shapes, expected):
    cost = flops.count(Calls(function), [zeros(*shape) for shape in shapes])
    assert cost.forward == expected and not cost.unknown


def test_bilinear_layers_are_two_products():
    rows, left, right, outputs = 3, 4, 5, 6
    cost = flops.count(nn.Bilinear(left, right, outputs), (zeros(rows, left), zeros(rows, right)))
    assert cost.forward == 2 * rows * outputs * right * (left + 1)
    assert cost.backward and not cost.unknown


def test_a_complex_product_is_four_real_ones():
    x = zeros(3, 4, dtype=torch.cfloat)
    assert flops.count(Calls(lambda _, x: x @ x.mT), x).forward == 4 * 2 * 3 * 4 * 3


def test_a_sparse_factor_counts_what_it_stores():
    graph = torch.eye(4).to_sparse()

    class Graph(nn.Module):
        def __init__(self, adjacency):
            super().__init__()
            self.register_buffer("adjacency", adjacency)
            self.linear = nn.Linear(5, 6)

        def forward(self, x):
            return self.adjacency @ self.linear(x)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "sparse CSR is in beta"
        for adjacency in (graph, graph.to_sparse_csr()):
            assert flops.count(Graph(adjacency), zeros(4, 5)).forward == 2 * 4 * 5 * 6 + 2 * 4 * 6


def test_ragged_batches_count_their_rows():
    def ragged(p, x):
        return torch.nested.nested_tensor([x, x[:2]], layout=torch.jagged) @ p[0]

    cost = flops.count(Calls(ragged, zeros(4, 5)), zeros(3, 4))
    assert cost.forward == 2 * (3 + 2) * 4 * 5 and not cost.unknown


def test_flexible_attention_counts_all_pairs():
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    mask = create_block_mask(lambda b, h, q, k: q >= k, 1, 1, 128, 128, device="cpu")
    cost = flops.count(Calls(lambda _, q: flex_attention(q, q, q, block_mask=mask)), zeros(1, 2, 128, 16))
    assert cost.forward == 4 * 2 * 128 * 128 * 16


def test_scans_and_branches_count_what_runs():
    from torch._higher_order_ops.scan import scan

    def recurrence(p, x):
        def step(state, now):
            state = torch.tanh(now @ p[0] + state @ p[1])
            return state, state.clone()

        return scan(step, torch.zeros(x.shape[1], 6, device=x.device), x)[1]

    def branches(p, x):
        return torch.cond(x.sum() > 0, lambda y: y @ p[0], lambda y: (y @ p[0]) @ p[1], (x,))

    weights = zeros(4, 6), zeros(6, 6)
    assert flops.count(Calls(recurrence, *weights), zeros(5, 2, 4)).forward == 2 * 5 * 2 * 6 * (4 + 6)
    assert flops.count(Calls(branches, *weights), zeros(3, 4)).forward == 2 * 3 * 6 * (4 + 6)
    assert flops.count(Calls(branches, *weights), torch.ones(3, 4)).forward == 2 * 3 * 6 * 4


def test_quantized_programs_count_as_the_floats_they_stand_for(tmp_path):
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = nn.LSTM(8, 16, 2, bidirectional=True, batch_first=True)
            self.head = nn.Linear(32, 4)

        def forward(self, x):
            return self.head(self.lstm(x)[0])

    model = Recurrent().eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "eager mode quantization is deprecated"
        small = torch.ao.quantization.quantize_dynamic(model, {nn.Linear, nn.LSTM})
    cost = flops.count(small, zeros(1, 5, 8))
    assert cost.forward == flops.count(model, zeros(1, 5, 8)).forward and not cost.unknown


def test_quantized_convolutions():
    stack = nn.Sequential(
        torch.ao.quantization.QuantStub(), nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), torch.ao.quantization.DeQuantStub()
    ).eval()
    stack.qconfig = torch.ao.quantization.get_default_qconfig(torch.backends.quantized.engine)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        prepared = torch.ao.quantization.prepare(torch.ao.quantization.fuse_modules(stack, ["1", "2"]))
        prepared(torch.rand(1, 3, 8, 8))
        cost = flops.count(torch.ao.quantization.convert(prepared), zeros(1, 3, 8, 8))
    assert cost.forward == 2 * 8 * 8 * 8 * 3 * 9 and not cost.unknown


def test_an_operator_without_gradient_leaves_the_forward_pass():
    def product(p, x):
        eight = torch.float8_e4m3fn
        one = torch.ones((), device=x.device)
        return torch._scaled_mm(x.to(eight), p[0].to(eight).t(), one, one)

    cost = flops.count(Calls(product, zeros(16, 16)), zeros(16, 16))
    assert cost.forward == 2 * 16**3 and cost.backward is None


def test_modules_that_cannot_be_copied_deeply():
    class Holds(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 5)
            self.lstm = nn.LSTM(5, 3)
            self.lock = threading.Lock()

        def forward(self, x):
            return self.lstm(self.linear(x))[0]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "weight_norm is deprecated"
        normed = nn.utils.weight_norm(nn.Conv1d(4, 8, 3))  # keeps a weight that autograd made
    normed.weight = normed.weight_g * normed.weight_v
    for module, x, expected in (
        (Holds(), zeros(6, 4), 2 * 6 * (4 * 5 + 12 * (5 + 3))),
        (normed, zeros(1, 4, 10), 2 * 8 * 8 * 4 * 3),
    ):
        cost = flops.count(module, x)
        assert (cost.forward, cost.ran_on) == (expected, "meta")
        assert not any(p.is_meta for p in module.parameters())
        assert not any(m._forward_hooks for m in module.modules())


def test_modules_that_the_sample_did_not_reach_are_named():
    class Half(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.spare = nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
            self.attention = nn.MultiheadAttention(4, 2)  # uses its output layer's weight without calling the layer

        def forward(self, x):
            return self.attention(x, x, self.used(x))[0]

    assert flops.count(Half(), zeros(3, 4)).idle == {"spare": 4 * 8 + 8 + 8 * 2 + 2}
