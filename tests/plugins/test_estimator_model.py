"""The time and memory model: shapes, layouts, and the direction of every effect."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from computekit_estimator import collectives, gemm, hardware, infer, layer, memory, plan, time
from computekit_estimator.constants import CONSTANTS
from computekit_estimator.errors import ContradictingDimensions, ImpossibleLayout
from computekit_estimator.layout import Layout, check
from computekit_estimator.transformer import Transformer

GPT = Transformer(layers=24, hidden=2048, heads=16, ffn=8192, vocab=51200)
A100 = hardware.find("A100-SXM4-80GB")
ALL = Layout(tp=2, pp=4, dp=8, microbatch=2, global_batch=128, recompute="full")


def step(layout: Layout, model: Transformer = GPT) -> float:
    return float(time.step(model, layout, A100).total)


@given(m=st.integers(1, 9000), n=st.integers(1, 9000), k=st.integers(1, 9000))
@settings(max_examples=60, deadline=None)
def test_a_product_never_beats_the_peak_or_the_memory(m, n, k):
    seconds = float(gemm.seconds(A100, "bf16", m, n, k))
    assert seconds >= 2 * m * n * k / A100.peak("bf16")
    assert seconds >= 2 * (m * n + n * k + m * k) / A100.memory_rate


def test_wave_and_tile_quantisation():
    def rate(n: int) -> float:
        return 2 * 4096 * n * 4096 / float(gemm.seconds(A100, "bf16", 4096, n, 4096))

    assert rate(128 * 27) > 1.1 * rate(128 * 27 + 8)  # eight more columns open another wave
    unfused = replace(ALL, fused_attention=False)
    odd, even = (
        float(layer.attention_core(replace(GPT, head_dim=width), unfused, A100, CONSTANTS)) for width in (108, 112)
    )
    assert odd > 2 * even  # rows that are no multiple of 16 bytes lose the tensor cores


def test_ring_collectives():
    size, rate = 1e9, A100.node_rate * CONSTANTS.node_link
    one = float(collectives.all_reduce(A100, size, 8, 8))
    assert one == pytest.approx(2 * size * 7 / 8 / rate + 2 * 3 * CONSTANTS.message_s)
    assert float(collectives.all_reduce(A100, size, 1, 1)) == 0
    assert float(collectives.all_reduce(A100, size, 64, 8)) > one  # the network is slower than the node
    alone, together = (float(collectives.gather(A100, size, 16, near)) for near in (1, 8))
    assert together < alone  # eight adapters carry eight parts at once


@pytest.mark.parametrize(
    ("faster", "slower"),
    [
        (replace(ALL, recompute="none"), ALL),
        (replace(ALL, vp=3), replace(ALL, global_batch=64)),
        (replace(ALL, overlap=True), replace(ALL, overlap=False)),
        (ALL, replace(ALL, fused_attention=False)),
        (replace(ALL, tensor_overlap=True), ALL),
        (replace(ALL, async_gradients=True), ALL),
    ],
)
def test_effects_point_the_right_way(faster, slower):
    assert step(faster) / faster.global_batch < step(slower) / slower.global_batch


def test_tokens_travel_to_their_experts():
    mixture = replace(GPT, experts=16, topk=2, expert_ffn=2048, shared_experts=1)
    spread = Layout(dp=16, ep=16, global_batch=16)
    assert step(spread, mixture) > step(replace(spread, expert_overlap=True), mixture)
    size, near = 1e8, 8
    once, twice = (float(collectives.all_to_all(A100, size, 64, near, copies=copies)) for copies in (8, 0))
    assert once < twice  # a node gets a row once
    assert float(collectives.all_to_all(A100, size, 8, 8)) < twice  # inside a node


def test_sharded_weights_go_around_all_nodes():
    """At one sequence a rank the same work on more nodes takes longer only by communication."""
    few, many = (Layout(dp=n, global_batch=n, sharding="zero3") for n in (64, 1024))
    grown = float(time.step(GPT, many, A100).data_comm - time.step(GPT, few, A100).data_comm)
    assert grown > 2 * GPT.layers * 100 * CONSTANTS.network_message_s


def test_latent_attention_keeps_a_small_cache_and_splits_its_heads():
    latent = replace(GPT, kv_lora=512, rope_dim=64, head_dim=192, v_dim=128, bias=False)
    assert latent.cache_width == 576 < GPT.cache_width
    assert latent.attention_products(4)[0][0] == latent.q_width / 4
    assert latent.attention_products(4)[1][0] == 576  # what keys and values come from is on every rank


def test_a_longer_pipeline_has_a_larger_bubble_and_interleaving_a_smaller_one():
    share = lambda lay: float(time.step(GPT, lay, A100).bubble) / step(lay)  # noqa: E731
    deep = replace(ALL, pp=8, dp=4, global_batch=64)
    assert share(deep) > share(replace(deep, pp=4, dp=8, global_batch=128))
    assert share(replace(deep, vp=3)) < share(deep)


def test_parts_add_up():
    parts = time.step(GPT, ALL, A100)
    assert float(parts.total) == pytest.approx(sum(float(v) for v in vars(parts).values()))
    sizes = memory.training(GPT, ALL, A100)
    assert float(sizes.total) == pytest.approx(sum(float(v) for v in vars(sizes).values()))
    assert all(float(v) >= 0 for v in (*vars(parts).values(), *vars(sizes).values()))


def test_arrays_of_layouts_give_what_single_layouts_give():
    singles = [replace(ALL, microbatch=m, tp=t, dp=16 // t) for m, t in ((1, 1), (2, 2), (4, 4))]
    many = replace(ALL, microbatch=np.array([1, 2, 4]), tp=np.array([1, 2, 4]), dp=np.array([16, 8, 4]))
    assert np.allclose(time.step(GPT, many, A100).total, [step(one) for one in singles])
    assert np.allclose(
        memory.training(GPT, many, A100).total, [float(memory.training(GPT, one, A100).total) for one in singles]
    )


@pytest.mark.parametrize(
    ("sharding", "parts"),
    [
        ("zero1", ("optimizer",)),
        ("zero2", ("optimizer", "gradients")),
    ],
)
def test_sharding_divides_exactly_its_parts(sharding, parts):
    whole = memory.training(GPT, replace(ALL, pp=1, dp=32, global_batch=64), A100)
    shared = memory.training(GPT, replace(ALL, pp=1, dp=32, global_batch=64, sharding=sharding), A100)
    for part in ("weights", "gradients", "optimizer"):
        expected = float(getattr(whole, part)) / (32 if part in parts else 1)
        assert float(getattr(shared, part)) == pytest.approx(expected)


def test_full_shards_are_sixteen_bytes_a_weight_over_all_that_hold_the_same():
    """fp32 weights, gradients and two moments, over data and context parallelism alike."""
    plain = Layout(dp=32, global_batch=32, sharding="zero3")
    for layout in (plain, replace(plain, dp=16, cp=2)):
        parts = memory.training(GPT, layout, A100)
        shards = float(parts.weights + parts.gradients + parts.optimizer)
        assert shards == pytest.approx(16 * float(time.rank_parameters(GPT, layout)) / 32)


def test_a_compiled_loss_keeps_no_copy_of_the_logits():
    plain = replace(ALL, pp=1, tp=1, dp=64)
    small, large = (memory.training(GPT, replace(plain, compiled_loss=on), A100) for on in (True, False))
    assert float(small.logits) == float(large.logits) / 3 == 4 * plain.microbatch * GPT.seq * GPT.vocab
    assert step(replace(plain, compiled_loss=True)) < step(plain)


def test_what_the_allocator_reserves_leaves_out_the_context():
    parts = memory.training(GPT, ALL, A100)
    assert float(parts.reserved) == float(parts.total) - float(parts.context) < float(parts.total)


def test_recomputed_operators_keep_every_second_product():
    none, some, full = (
        memory.activation_bytes(GPT, replace(ALL, pp=1, recompute=how)) for how in ("none", "operators", "full")
    )
    assert full < some < none


def test_a_fixed_clock_sustains_more_of_its_peak():
    tpu, gpu = hardware.find("TPU-v5p"), hardware.find("H100-SXM5-80GB")
    assert tpu.sustained("bf16") / tpu.peak("bf16") > 1.3 * gpu.sustained("bf16") / gpu.peak("bf16")


def test_computation_hides_sharded_weights_pass_by_pass():
    """With more sequences a rank the exposed part falls to what gathering costs the multiprocessors."""
    exposed = [
        float(time.step(GPT, Layout(dp=256, microbatch=m, global_batch=256 * m, sharding="zero3"), A100).data_comm)
        for m in (1, 2, 4, 8, 64)
    ]
    assert exposed == sorted(exposed, reverse=True) and exposed[-1] > 0.1 * exposed[0]


def test_activations_of_a_plain_layer_follow_korthikanti():
    """Equation 2 of arXiv:2205.05198 without dropout masks: (34 - 2) s b h + 4 a s^2 b of scores, tp 1."""
    one = Layout(microbatch=2, global_batch=2, fused_attention=False)
    tokens = 2 * GPT.seq
    scores = 4 * GPT.heads * GPT.seq**2 * 2
    half = GPT.layers * (32 * tokens * GPT.hidden + scores)
    assert memory.activation_bytes(GPT, one) == half
    assert memory.activation_bytes(GPT, replace(one, precision="fp32")) == 2 * half


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"tp": 3}, "tp=3 does not divide 16 heads; the nearest is tp=2"),
        ({"pp": 7}, "pp=7 leaves a stage without any of the 24 layers; take pp=6"),
        ({"pp": 48}, "more stages than the model's 24 layers"),
        ({"microbatch": 3}, "microbatch 3 does not divide the 16 sequences of each rank; take microbatch 2"),
        ({"global_batch": 100}, "global batch 100 is no multiple of dp=8; take 96"),
        ({"ep": 2}, "needs a mixture of experts"),
        ({"vp": 2, "pp": 1}, "vp=2 interleaves pipeline stages"),
        ({"cp": 3}, "cp=3 does not divide seq=2048"),
    ],
)
def test_impossible_layouts_name_the_nearest(change, says):
    with pytest.raises(ImpossibleLayout, match=says.replace("(", r"\(")):
        check(GPT, replace(ALL, **change), A100)


def test_dimensions_that_contradict():
    with pytest.raises(ContradictingDimensions, match="hidden 100 is not a multiple of heads 7"):
        Transformer(2, 100, 7, 400, 10)


@pytest.mark.parametrize(
    ("text", "name", "rate"),
    [
        ("A100-80GB-SXM", "A100-SXM4-80GB", 25e9),
        ("A100-80GB-SXM(JeanZay,4xOPA100/node)", "A100-SXM4-80GB", 6.25e9),
        ("H100-96GB-HBM2e-500W", "H100-SXM5-80GB", 50e9),
        ("V100-32GB", "V100-SXM2-32GB", 12.5e9),
    ],
)
def test_devices_in_the_spelling_of_published_tables(text, name, rate):
    gpu = hardware.find(text, published=True)
    assert gpu.name == name and gpu.network_rate == rate


def test_a_power_limit_slows_down():
    assert hardware.find("H100-SXM5-80GB-500W").sustained("bf16") < hardware.find("H100-SXM5-80GB").sustained("bf16")


def test_decoding_is_bound_by_weights_and_batching_is_nearly_free():
    one, many = infer.Serving(batch=1), infer.Serving(batch=16)
    each = float(infer.decode(GPT, one, A100, 100))
    assert each > infer.weight_bytes(GPT, one) / A100.memory_rate * 0.8
    assert float(infer.decode(GPT, many, A100, 100)) < 1.5 * each
    assert float(infer.decode(GPT, replace(one, precision="int8"), A100, 100)) < each


def test_a_plan_fits_is_sorted_and_can_run():
    found = plan.search(GPT, A100, 32, 256)
    assert found.tried >= found.fitting > 0 and len(found.choices) == 5
    assert [c.step_s for c in found.choices] == sorted(c.step_s for c in found.choices)
    for choice in found.choices:
        check(GPT, choice.layout, A100)
        assert choice.layout.num_gpus == 32 and choice.memory_bytes <= A100.memory_bytes
        assert step(choice.layout) == pytest.approx(choice.step_s)


def test_nothing_fits_is_said():
    huge = Transformer(layers=96, hidden=12288, heads=96, ffn=49152, vocab=51200)
    assert not plan.search(huge, A100, 1, 8).choices


def test_heads_of_a_group_read_its_keys_again_without_kernels_for_groups():
    grouped = replace(GPT, kv_heads=2)
    serve = infer.Serving(batch=64, group_kernels=False)
    alone, shared = (float(infer.decode(grouped, s, A100, 2048)) for s in (serve, replace(serve, group_kernels=True)))
    assert alone > 1.2 * shared
    assert float(infer.decode(GPT, serve, A100, 2048)) == float(
        infer.decode(GPT, replace(serve, group_kernels=True), A100, 2048)
    )


def test_each_expert_is_a_kernel_of_its_own():
    """The same work in more, smaller experts takes longer."""
    few, many = (replace(GPT, experts=4 * n, topk=n, expert_ffn=8192 // n, shared_experts=0) for n in (1, 8))
    assert step(Layout(global_batch=1), many) > step(Layout(global_batch=1), few)


def test_every_second_layer_recomputed_lies_half_way():
    model, gpu = GPT, A100
    none, half, full = (
        replace(Layout(dp=8, global_batch=64, microbatch=2), recompute=way) for way in ("none", "layers", "full")
    )
    seconds = [float(time.step(model, layout, gpu).recompute) for layout in (none, half, full)]
    assert seconds[0] == 0 and seconds[1] == pytest.approx(seconds[2] / 2)
    kept = [float(memory.activation_bytes(model, layout)) for layout in (full, half, none)]
    assert kept == sorted(kept) and kept[1] < 0.6 * kept[2]
