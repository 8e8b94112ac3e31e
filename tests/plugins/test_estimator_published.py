"""Rows of other tables: spellings, cells that are missing, and perturbed rows that must stay sane."""

from __future__ import annotations

import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from computekit_estimator import hardware, predict, published, runs, spelling, units, validate
from computekit_estimator.constants import CONSTANTS
from computekit_estimator.errors import CannotPredict

ROWS = [run for run in runs.load() if run.family != "tv"]
OWN = tuple(predict.KINDS)


@pytest.mark.parametrize(
    ("word", "means"),
    [
        ("iter_time_s", "iter_time_s"), ("step_time_ms", "iter_time_s"), ("sec_per_iter", "iter_time_s"),
        ("TTFT", "prefill"), ("time_to_first_token_ms", "prefill"), ("tpot", "decode_latency_ms"),
        ("tokens/s", "tokens_per_s"), ("Tokens per s per GPU", "tokens_per_s_per_gpu"),
        ("gpu_hours", "train_gpu_hours"),
        ("model_tflops_per_gpu", "tflops_per_gpu"), ("samples_per_sec", "samples_per_s"),
        ("decode_tokens_per_s", "decode_tokens_per_s"), ("peak_memory_gib", "peak_memory_gb"),
        ("max_memory_reserved_gb", "peak_memory_gb"), ("MFU (%)", "mfu"), ("TGS", "tokens_per_s_per_gpu"),
        ("Model FLOPS Utilization", "mfu"), ("bananas", "bananas"),
    ],
)  # fmt: skip
def test_kinds(word, means):
    assert spelling.kind(word, OWN) == means


@pytest.mark.parametrize(
    ("read", "word", "means"),
    [
        (spelling.precision, "amp_bf16", "bf16"), (spelling.precision, "BF16-mixed", "bf16"),
        (spelling.precision, "FP8 (E4M3)", "fp8"), (spelling.precision, "MXFP8", "fp8"),
        (spelling.precision, "float16", "fp16"),
        (spelling.precision, "16-mixed", "fp16"), (spelling.recompute, "selective (layer)", "layers"),
        (spelling.weight_format, "AWQ", "int4g128"),
        (spelling.weight_format, "int4g32", "int4g32"), (spelling.weight_format, "Q4_K_M", "q4_k_m"),
        (spelling.weight_format, "W8A8", "w8a8"), (spelling.weight_format, "bfloat16", "bf16"),
        (spelling.recompute, "Full", "full"), (spelling.recompute, "SAC", "operators"),
        (spelling.recompute, "no", "none"),
        (spelling.recompute, "selective", "selective"), (spelling.sharding, "ZeRO-3", "zero3"),
        (spelling.sharding, "distributed optimizer", "zero1"), (spelling.sharding, "FULL_SHARD", "zero3"),
        (spelling.sharding, "DDP", "none"),
    ],
)  # fmt: skip
def test_words(read, word, means):
    assert read(word) == means


@pytest.mark.parametrize(
    ("kind", "unit", "factor"),
    [
        ("param_count", "B", 1e-9), ("param_count", "M params", 1e-6), ("train_gpu_hours", "A100 hours", 1.0),
        ("train_gpu_hours", "M GPU hours", 1e-6), ("train_gpu_hours", "GPU-days", 1 / 24),
        ("train_flops", "ZFLOPs", 1e-21),
        ("forward_flops", "GMACs", 0.5e-9), ("train_flops", "PF-days", 1 / 8.64e19), ("tokens_per_s", "tok/s", 1.0),
    ],
)  # fmt: skip
def test_units(kind, unit, factor):
    assert units.factor(kind, unit) == pytest.approx(factor)


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("8xA100-80GB", "A100-SXM4-80GB"), ("4x H100", "H100-SXM5-80GB"), ("A6000", "RTX-A6000"), ("3090", "RTX-3090"),
        ("TPUv4", "TPU-v4"), ("GB200 NVL72", "GB200"), ("DGX-2H V100-32GB", "V100-SXM2-32GB"),
    ],
)  # fmt: skip
def test_devices(name, row):
    assert hardware.find(name, published=True).name == row


@pytest.mark.parametrize(
    ("name", "cell", "means"),
    [
        ("hidden", "12,288", 12288), ("hidden", "12288.0", 12288), ("seq", "8K", 8192), ("in_len", "2 k", 2048),
        ("hidden", "n/a", 7), ("hidden", "-", 7), ("hidden", "NaN", 7),
    ],
)  # fmt: skip
def test_numbers(name, cell, means):
    assert runs.Run({name: cell}).whole(name, 7) == means


@pytest.mark.parametrize("cell", ["3,8", "~8", "8k", "8x8", "inf"])
def test_what_is_no_number_is_named(cell):
    with pytest.raises(CannotPredict, match="hidden"):
        runs.Run({"hidden": cell}).whole("hidden", 7)


def test_a_row_with_absurd_sizes_is_answered_at_once():
    row = {**find("mlm24_177B").cells, "layers": "1000000007", "tp": "", "pp": "", "dp": ""}
    assert validate.compare(runs.Run(row)).id == "mlm24_177B"


def test_what_a_source_says_of_serving():
    fp8 = find("trtllm061_LLaMA-7B_H_112_128_2048")
    assert published.cache_element(fp8) == 1 and not published.group_kernels(fp8)
    assert published.cache_element(find("trtllm061_LLaMA-7B_A_60_128_2048")) == 2
    assert published.group_kernels(find("gptfast_Llama-3.1-70B_bf16_tp2"))


def test_mixtures_are_a_class_of_their_own():
    classes = {validate.class_of(run) for run in ROWS if run.family == "bridge"}
    assert classes == {"training time", "training time, mixtures of experts"}


def test_memory_of_the_allocator_is_compared_with_the_allocator():
    assert published.of_allocator(find("titan_h200_32_mem")) and not published.of_allocator(find("bloomq_583_mem"))


def find(run_id: str) -> runs.Run:
    return next(run for run in ROWS if run.id == run_id)


def test_latent_attention_comes_from_the_definition_or_the_name():
    told, named = (published.model_of(find(name)) for name in ("dsv3_pretrain_gpuh", "dsv3_params"))
    assert told.parameters == named.parameters == 671_026_404_352
    assert told.cache_width == 576 and told.moe_layers == 58


def test_a_head_dimension_follows_from_the_size_in_the_name():
    assert published.model_of(find("palm540_flops")).head_dim == 256
    assert published.model_of(find("mlm21_t1_1T_iter")).head_dim == 160


def test_rows_of_one_job_tell_it_together():
    hours = find("bloom176_gpuh")
    assert hours.text("microbatch") == "2" and hours.text("recompute") == "full"
    assert find("mlm24_1.7B").text("microbatch") == ""


def test_the_layout_may_be_in_the_definition():
    assert published.ranks_of(find("dsv3_pretrain_gpuh"), "ep") == 64


def test_what_is_not_published_is_assumed_and_said():
    assert validate.said(find("llama1_7B_gpuh")) == ["the number of devices", "the fastest layout that fits"]
    assert validate.class_of(find("llama1_7B_gpuh")) == "training time, layout assumed"
    assert validate.said(find("bloomq_583")) == []


def test_a_pipeline_of_one_microbatch_is_cut_in_one_for_each_stage():
    run = find("titan_405b_1F1B")
    layout = published.layout_of(run, published.model_of(run), published.gpu_of(run))
    assert (layout.microbatch, layout.microbatches) == (4, 8)


CHANGES = {
    "tp": ("", "1", "2", "8", "3"), "pp": ("", "1", "4", "7"), "cp": ("", "2"), "ep": ("", "1", "8"),
    "dp": ("", "1", "8"), "vp": ("", "1", "2"), "microbatch": ("", "1", "4", "6", "x"), "num_gpus": ("", "1", "64"),
    "global_batch": ("", "1", "64", "2048"), "precision": ("", "fp16", "amp_bf16", "FP8", "int4", "q4_k_m", "odd"),
    "recompute": ("", "none", "Full", "selective", "??"), "sharding": ("", "ZeRO-3", "fsdp2", "dist-opt", "??"),
    "seq": ("", "512", "8192", "131072"), "experts": ("", "8", "256"), "kv_heads": ("", "1", "8"), "heads": ("", "7"),
    "ffn_gated": ("", "1", "true"), "vocab": ("", "0", "250880"), "infer_batch": ("", "1", "64"),
    "in_len": ("", "2048"),
    "hardware": ("", "H100", "8xA100-80GB", "TPU v4", "MI300X", "RTX 4090", "B200", "V100-32GB", "Z80"),
    "kind": ("iter_time_s", "mfu", "tokens_per_s", "ttft", "gpu_hours", "bananas"),
}  # fmt: skip


@given(
    run=st.sampled_from(ROWS),
    changed=st.dictionaries(st.sampled_from(sorted(CHANGES)), st.integers(0, 8), max_size=5),
    lost=st.lists(st.sampled_from(runs.COLUMNS[2:31]), max_size=2),
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_perturbed_row_is_sane_or_has_its_reason(run, changed, lost):
    cells = {**run.cells, **{name: CHANGES[name][i % len(CHANGES[name])] for name, i in changed.items()}}
    odd = runs.Run({name: cell for name, cell in cells.items() if name not in lost})
    row = validate.compare(odd)
    assert validate.class_of(odd) and isinstance(validate.said(odd), list)
    assert (row.predicted is None) == (row.reason_skipped is not None)
    if row.predicted is not None:
        assert math.isfinite(row.predicted) and row.predicted > 0
    if row.predicted is not None and predict.kind_of(odd) in ("iter_time_s", "mfu", "tokens_per_s_per_gpu"):
        assert 0 < predict.KINDS["mfu"](odd, CONSTANTS) < 0.8


@pytest.mark.parametrize("run_id", ["mlm21_t1_39B_iter", "bloomq_776", "titan_8b_128_eager", "foundry_7b_s2048_g8"])
def test_more_work_takes_longer(run_id):
    run = next(run for run in ROWS if run.id.startswith(run_id))
    timed = {**run.cells, "kind": "iter_time_s", "unit": "s"}
    layers = int(run.text("layers")) * 2
    base = validate.compare(runs.Run(timed)).predicted
    for more in ({"layers": str(layers)}, {"global_batch": str(2 * int(run.text("global_batch")))}):
        assert base < validate.compare(runs.Run({**timed, **more})).predicted < 2.2 * base


@pytest.mark.parametrize(
    ("kind", "unit", "cells"),
    [("infer_samples_per_sec", "img/s", {"infer_batch": "64"}), ("infer_step_time_ms", "ms", {"infer_batch": "64"}),
     ("train_samples_per_s", "img/s", {"microbatch": "64"}), ("train_step_ms", "ms", {"microbatch": "64"})],
)  # fmt: skip
def test_image_models_are_timed_by_the_roofline(kind, unit, cells):
    row = {"id": "timm_r50", "kind": kind, "model": "resnet50", "hardware": "RTX-4090", "precision": "amp"}
    run = runs.Run({**row, "value": "100", "unit": unit, **cells})
    done = validate.compare(run)
    per_image = done.predicted / 64e3 if unit == "ms" else 1 / done.predicted
    flops = 8.2e9 * (3 if "train" in kind else 1)
    assert flops / per_image < hardware.find("RTX-4090").peak("bf16")
    assert per_image < 0.01
    assert validate.class_of(run) == "image models by roofline"


@pytest.mark.parametrize(
    ("text", "bytes_s"),
    [
        ("4xOPA100/node", 50e9), ("4x100Gb RoCE/node", 50e9), ("400Gbps/node", 50e9), ("1600 Gbps node-node", 200e9),
        ("3.2 Tbps between nodes", 400e9), ("compile, 8 GPUs", None),
    ],
)  # fmt: skip
def test_the_network_of_a_node(text, bytes_s):
    assert hardware.node_network(text) == bytes_s


@pytest.mark.parametrize(("note", "compiled"), [("torch.compile", True), ("no compile", False), ("uncompiled", False)])
def test_what_is_not_compiled_is_not_taken_for_compiled(note, compiled):
    run = next(run for run in ROWS if run.id.startswith("foundry_13b"))
    run = runs.Run({**run.cells, "definition": note})
    model, gpu = published.model_of(run), published.gpu_of(run)
    assert published.layout_of(run, model, gpu).compiled is compiled


@pytest.mark.parametrize("delimiter", [";", "\t"])
def test_other_delimiters_and_headers(tmp_path, delimiter):
    cells = ROWS[0].cells
    lines = (
        delimiter.join(name.upper() + " " for name in cells),
        delimiter.join(f'"{cell}"' for cell in cells.values()),
    )
    path = tmp_path / "runs.csv"
    path.write_text("\n".join(lines), encoding="utf-8")
    assert runs.load(path)[0].cells == cells
