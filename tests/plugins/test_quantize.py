"""``computekit quantize`` and ``computekit dequantize`` on files without code."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result
from torch import nn

import computekit
from computekit import records
from computekit.cli import main


class Net(nn.Module):
    """A little of everything: tied embedding, positions, convolution, norms, recurrence, a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(200, 32)
        self.pos_embed = nn.Parameter(torch.randn(1, 8, 32))
        self.conv = nn.Conv1d(32, 32, 3, padding=1)
        self.bn = nn.BatchNorm1d(32)
        self.lstm = nn.LSTM(32, 32, batch_first=True)
        self.norm = nn.LayerNorm(32)
        self.head = nn.Linear(32, 200, bias=False)
        self.head.weight = self.embed.weight
        self.gate = nn.Parameter(torch.randn(32, 32))
        self.register_buffer("mask", torch.ones(8, 8, dtype=torch.bool))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids) + self.pos_embed
        x = self.bn(self.conv(x.mT)).mT
        return self.head(self.norm(self.lstm(x)[0] @ self.gate))


def invoke(*words: str | Path) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words])


@pytest.fixture
def state() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return Net().state_dict()


@pytest.fixture
def file(tmp_path: Path, state: dict[str, torch.Tensor]) -> Path:
    torch.save(state, tmp_path / "net.pt")
    return tmp_path / "net.pt"


def test_file_becomes_smaller_and_runs(file: Path, state: dict[str, torch.Tensor]) -> None:
    result = invoke("quantize", "--int8", file)
    assert result.exit_code == 0, result.stderr
    output = file.with_name("net-int8.pt")
    assert output.stat().st_size < 0.5 * file.stat().st_size
    stored = torch.load(output, weights_only=True)
    assert stored["conv.weight"].dtype == torch.int8
    assert stored["conv.weight_scale"].shape == (32, 1)

    reference = Net().eval()
    reference.load_state_dict(state)
    ids = torch.arange(8)[None]
    with torch.inference_mode():
        theirs, ours = reference(ids), computekit.load_into(Net(), output)(ids)
    assert torch.cosine_similarity(theirs.flatten(), ours.flatten(), 0) > 0.999


def test_what_is_not_a_weight_passes_through_untouched(tmp_path: Path, state: dict[str, torch.Tensor]) -> None:
    odd = {
        "counter": torch.tensor(3),
        "flags": torch.ones(4, 4, dtype=torch.bool),
        "phase.weight": torch.randn(4, 4, dtype=torch.complex64),
        "empty.weight": torch.zeros(0, 4),
        "alpha": torch.tensor(0.5),
    }
    torch.save({**state, **odd}, tmp_path / "odd.pt")
    assert invoke("quantize", "--int8", tmp_path / "odd.pt").exit_code == 0
    stored = torch.load(tmp_path / "odd-int8.pt", weights_only=True)
    for name in (*odd, "pos_embed", "conv.bias", "bn.weight", "bn.running_var", "norm.weight", "gate", "mask"):
        before = {**state, **odd}[name]
        assert stored[name].dtype == before.dtype
        assert torch.equal(stored[name], before), name


def test_tied_weights_stay_tied_in_the_file(file: Path) -> None:
    invoke("quantize", "--int8", file)
    stored = torch.load(file.with_name("net-int8.pt"), weights_only=True)
    assert stored["embed.weight"].dtype == torch.int8
    assert stored["embed.weight"].data_ptr() == stored["head.weight"].data_ptr()
    assert stored["embed.weight_scale"].data_ptr() == stored["head.weight_scale"].data_ptr()


def test_record_tells_size_coverage_and_every_tensor(file: Path) -> None:
    result = invoke("quantize", "--int8", file, "--json")
    record = json.loads(result.stdout)
    quantities: dict[str, Any] = {key: q["value"] for key, q in record["rows"][0]["quantities"].items() if "value" in q}
    output = file.with_name("net-int8.pt")
    assert quantities["file_bytes"] == output.stat().st_size
    assert quantities["compression_ratio"] == pytest.approx(file.stat().st_size / output.stat().st_size)
    assert quantities["parameters"] == sum(p.numel() for p in Net().parameters())
    fates = {t["name"]: t.get("scheme", t.get("kept")) for t in record["details"]["tensors"]}
    assert fates["lstm.weight_ih_l0"] == "int8"
    assert fates["gate"] == "ambiguous (--include quantizes it)"
    assert fates["bn.bias"] == "a vector"
    assert records.load(records.beside(output)).step == "quantize"


def test_table_shows_what_was_kept_and_why(file: Path) -> None:
    shown = invoke("quantize", "--int8", file).stdout
    assert "position tensor" in shown
    assert "bool values" in shown
    assert "ambiguous (--include quantizes it)" in shown


def test_patterns_choose(file: Path) -> None:
    invoke("quantize", "--int8", file, "--include", "gate", "--exclude", "head.*", "--exclude", "conv.*")
    stored = torch.load(file.with_name("net-int8.pt"), weights_only=True)
    assert stored["gate"].dtype == torch.int8
    assert stored["conv.weight"].dtype == torch.float32
    assert stored["embed.weight"].dtype == torch.float32, "it is tied to an excluded tensor"


def test_dequantize_gives_back_floats_within_half_a_step(file: Path, state: dict[str, torch.Tensor]) -> None:
    invoke("quantize", "--int8", file)
    result = invoke("dequantize", file.with_name("net-int8.pt"), "-o", file.with_name("back.pt"))
    assert result.exit_code == 0, result.stderr
    back = torch.load(file.with_name("back.pt"), weights_only=True)
    assert list(back) == list(state)
    for name, before in state.items():
        assert back[name].dtype == before.dtype
        if before.dtype == torch.float32:
            rows = before.reshape(before.shape[0], -1) if before.ndim else before.reshape(1, 1)
            step = rows.abs().amax(1).reshape(-1, *[1] * max(0, before.ndim - 1)) / 127
            assert bool(((back[name] - before).abs() <= 0.501 * step).all()), name
    assert back["embed.weight"].data_ptr() == back["head.weight"].data_ptr()


def test_same_bytes_every_time(file: Path) -> None:
    first = invoke("quantize", "--int8", file, "-o", file.with_name("a.pt"))
    second = invoke("quantize", "--int8", file, "-o", file.with_name("b.pt"))
    assert first.exit_code == second.exit_code == 0
    assert file.with_name("a.pt").read_bytes() == file.with_name("b.pt").read_bytes()


def refused(result: Result, *parts: str) -> None:
    """One line, exit 1, naming ``parts``."""
    assert result.exit_code == 1
    assert len(result.stderr.splitlines()) == 1
    for part in parts:
        assert part in result.stderr


def test_quantizing_twice_is_refused(file: Path) -> None:
    invoke("quantize", "--int8", file)
    refused(invoke("quantize", "--int8", file.with_name("net-int8.pt")), "quantized already", "dequantize")
    refused(invoke("dequantize", file), "nothing to dequantize")


def test_non_finite_weights_are_refused_by_name(file: Path, state: dict[str, torch.Tensor]) -> None:
    state["lstm.weight_hh_l0"][3, 2] = float("nan")
    torch.save(state, file)
    result = invoke("quantize", "--int8", file)
    refused(result, "lstm.weight_hh_l0", "NaN", "--exclude")
    assert [p.name for p in file.parent.iterdir()] == ["net.pt"]
    assert invoke("quantize", "--int8", file, "--exclude", "lstm.weight_hh_l0").exit_code == 0


def test_a_no_op_is_refused_unless_asked(tmp_path: Path) -> None:
    torch.save({"table": torch.randn(100, 100), "fc.weight": torch.randn(4, 4)}, tmp_path / "m.pt")
    refused(invoke("quantize", "--int8", tmp_path / "m.pt"), "only", "ambiguous", "--allow-noop")
    assert not (tmp_path / "m-int8.pt").exists()
    assert invoke("quantize", "--int8", tmp_path / "m.pt", "--allow-noop").exit_code == 0


def test_an_output_that_is_not_smaller_is_refused(tmp_path: Path) -> None:
    torch.save({"fc.weight": torch.randn(4, 4)}, tmp_path / "m.pt")
    refused(invoke("quantize", "--int8", tmp_path / "m.pt"), "bytes", "--allow-noop")
    assert not (tmp_path / "m-int8.pt").exists()


def test_a_pattern_that_matches_nothing_is_refused(file: Path) -> None:
    refused(invoke("quantize", "--int8", file, "--exclude", "conv.wieght"), "conv.wieght", "did you mean conv.weight")


def test_no_scheme_is_wrong_usage(file: Path) -> None:
    assert invoke("quantize", file).exit_code == 2


def test_int4_is_really_packed(tmp_path: Path) -> None:
    torch.save({"fc.weight": torch.randn(512, 512)}, tmp_path / "fc.pt")
    assert invoke("quantize", "--int4", tmp_path / "fc.pt").exit_code == 0
    output = tmp_path / "fc-int4.pt"
    assert output.stat().st_size <= 0.16 * (tmp_path / "fc.pt").stat().st_size
    stored = torch.load(output, weights_only=True)
    assert {name: (t.dtype, tuple(t.shape)) for name, t in stored.items()} == {
        "fc.weight_packed": (torch.int32, (512, 64)),
        "fc.weight_scale": (torch.float32, (512, 16)),
        "fc.weight_shape": (torch.int64, (2,)),
    }


def test_int4_runs_and_comes_back(file: Path, state: dict[str, torch.Tensor]) -> None:
    assert invoke("quantize", "--int4", file, "--group-size", "16").exit_code == 0
    output = file.with_name("net-int4.pt")
    assert invoke("dequantize", output).exit_code == 0
    back = torch.load(file.with_name("net-int4-float.pt"), weights_only=True)
    assert {name: (t.dtype, t.shape) for name, t in back.items()} == {n: (t.dtype, t.shape) for n, t in state.items()}
    ids = torch.arange(8)[None]
    with torch.inference_mode():
        packed, floats = (
            computekit.load_into(Net(), file.with_name(f"net-int4{end}.pt"))(ids) for end in ("", "-float")
        )
    assert (packed - floats).norm() < 0.01 * floats.norm()  # linear layers multiply in bfloat16


@pytest.mark.parametrize("zipped", [True, False])
def test_weights_that_share_one_storage_do_not_bring_it_along(tmp_path: Path, zipped: bool) -> None:
    flat = torch.randn(4 * 64 * 64 + 128)  # as recurrent layers keep their weights on a GPU
    state = {"rnn.weight_ih_l0": flat[: 4 * 64 * 64].view(256, 64), "rnn.bias_ih_l0": flat[4 * 64 * 64 :]}
    torch.save(state, tmp_path / "rnn.pt", _use_new_zipfile_serialization=zipped)
    assert invoke("quantize", "--int8", tmp_path / "rnn.pt").exit_code == 0
    output = tmp_path / "rnn-int8.pt"
    assert output.stat().st_size < 0.4 * (tmp_path / "rnn.pt").stat().st_size
    assert torch.equal(torch.load(output, weights_only=True)["rnn.bias_ih_l0"], state["rnn.bias_ih_l0"])


def test_optimizer_state_is_pointed_out(tmp_path: Path) -> None:
    weight = torch.randn(100, 100)
    checkpoint = {"model": {"fc.weight": weight}, "optimizer": {"state": {0: {"exp_avg": weight + 1}}}}
    torch.save(checkpoint, tmp_path / "c.pt")
    result = invoke("quantize", "--int8", tmp_path / "c.pt", "--json")
    assert any("not weights" in note for note in json.loads(result.stdout)["notes"])


@pytest.mark.slow
def test_files_open_where_computekit_is_not_installed(file: Path) -> None:
    for words in (["--int8"], ["--int4", "--group-size", "16"]):
        assert invoke("quantize", *words, file).exit_code == 0
    program = (
        "import sys, torch\n"
        "sys.modules['computekit'] = sys.modules['torchao'] = None\n"
        "for path in sys.argv[1:]:\n"
        "    print(len(torch.load(path, weights_only=True)))\n"
    )
    files = [str(file.with_name(f"net-int{bits}.pt")) for bits in (8, 4)]
    done = subprocess.run([sys.executable, "-c", program, *files], capture_output=True, text=True, check=True)
    assert [int(line) > 20 for line in done.stdout.split()] == [True, True]


@pytest.mark.parametrize("words", [("--int8", "--int4"), ("--int8", "--scheme", "int4")])
def test_two_schemes_are_wrong_usage(words: tuple[str, ...], file: Path) -> None:
    result = invoke("quantize", *words, file)
    assert result.exit_code == 2 and "two schemes" in result.output
    assert list(file.parent.iterdir()) == [file]


def test_a_folder_that_is_no_model_is_refused_before_it_is_hashed(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "data").mkdir()
    monkeypatch.setattr("computekit.files.sha256", lambda path: pytest.fail("a folder may be a whole disk"))
    for command in (["quantize", "--int8"], ["dequantize"], ["convert"], ["prune", "--input-shape", "3"]):
        result = invoke(*command, tmp_path / "data")
        assert result.exit_code == 1 and "is no model file" in result.output, result.output


def test_a_sharded_file_is_measured_with_its_shards(state: dict[str, torch.Tensor], tmp_path: Path) -> None:
    from safetensors.torch import save_file

    names = list(state)
    shards = {"1.safetensors": names[:2], "2.safetensors": names[2:]}
    for shard, held in shards.items():
        save_file({name: state[name].clone() for name in held}, tmp_path / shard)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {name: shard for shard, held in shards.items() for name in held}}))
    before = {shard: (tmp_path / shard).read_bytes() for shard in shards}
    refused = invoke("quantize", "--int8", index, "-o", tmp_path / "1.safetensors")
    assert refused.exit_code == 1 and "is part of the input" in refused.output
    assert {shard: (tmp_path / shard).read_bytes() for shard in shards} == before
    result = invoke("quantize", "--int8", index)
    assert result.exit_code == 0, result.output
    target = tmp_path / "model-int8.safetensors.index.json"
    record = records.load(records.beside(target))
    size = index.stat().st_size + sum(map(len, before.values()))
    assert record.inputs[0].bytes == size
    assert record.rows[0].label == "model-int8"
    written = sum(path.stat().st_size for path in [target, *tmp_path.glob("model-int8-0000?-of-00002-*.safetensors")])
    assert record.output == records.FileRef.of(target)
    assert record.rows[0].quantities["compression_ratio"].value == pytest.approx(size / written)


def test_a_result_never_replaces_a_file_of_the_folder_that_it_is_made_from(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    save_file({"fc.weight": torch.randn(64, 64)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text('{"model_type": "mine"}')
    before = (tmp_path / "model.safetensors").read_bytes()
    for command in (["convert", "--dtype", "fp16"], ["quantize", "--int8"]):
        for inside in ("model.safetensors", "q"):
            result = invoke(*command, tmp_path, "-o", tmp_path / inside)
            assert result.exit_code == 1 and "lies inside the input" in result.output, result.output
    assert (tmp_path / "model.safetensors").read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 2


def test_a_count_is_shown_without_a_unit(file: Path, tmp_path: Path) -> None:
    assert invoke("quantize", "--int8", file, "-o", tmp_path / "small.pt").exit_code == 0
    result = invoke("dequantize", tmp_path / "small.pt", "-o", tmp_path / "back.pt")
    line = next(line for line in result.output.splitlines() if line.startswith("dequantized_tensors"))
    assert len(line.split()) == 3  # name, number, how
