"""Torch checkpoints: opened without running anything, rewritten with the structure around the weights intact."""

from __future__ import annotations

import argparse
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from computekit import FileProblem, open_model, rewrite
from computekit.models import conversion, inspection
from computekit.models.conversion import without_optimizer
from computekit.models.inspection import other_content
from computekit.models.torch_files import TorchFile


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 5))


def checkpoint() -> dict[str, Any]:
    model = network()
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(2, 3, 4, 4)).sum().backward()
    optimizer.step()
    return {"epoch": 3, "model_state": model.state_dict(), "optimizer_state": optimizer.state_dict(), "loss": 0.5}


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return type(a) is type(b) and list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


def copy(path: Path, target: Path, **options: Any) -> Any:
    rewrite(open_model(path, **options), target, lambda info, load: None)
    return torch.load(target, weights_only=True, mmap=True)


def halve(path: Path, target: Path) -> Any:
    rewrite(open_model(path), target, lambda info, load: [(info.name, load().half())] if len(info.shape) > 1 else None)
    return torch.load(target, weights_only=True)


WRAPPINGS: dict[str, Any] = {
    "bare": lambda sd: sd,
    "plain dict": dict,
    "state_dict": lambda sd: {"state_dict": sd, "epoch": 1},
    "model": lambda sd: {"model": sd, "args": {"lr": 0.1}},
    "net": lambda sd: {"net": sd, "acc": 91.2, "epoch": 7},
    "nested": lambda sd: {"model": {"state_dict": sd}, "version": (1, 2)},
    "module.": lambda sd: {"state_dict": {f"module.{key}": value for key, value in sd.items()}},
    "lightning": lambda sd: {
        "pytorch-lightning_version": "2.5.0",
        "state_dict": {f"model.{key}": value for key, value in sd.items()},
        "optimizer_states": [{"state": {0: {"step": torch.tensor(1.0)}}, "param_groups": [{"lr": 0.1}]}],
        "callbacks": {"EarlyStopping": {"best_score": torch.tensor(0.1)}},
        "hyper_parameters": {"width": 4},
    },
    "with arguments": lambda sd: (sd, {"lr": 0.1}, [1, 2]),
    "list": lambda sd: [{"state_dict": sd}, "v1"],
    "scheduler beside": lambda sd: {"model": sd, "lr_scheduler": {"last_epoch": 3}, "scaler": {"scale": 1024.0}},
    "stray tensors": lambda sd: {"state_dict": sd, "best": torch.tensor(0.3), "statistics": {"mean": torch.zeros(3)}},
}


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
@pytest.mark.parametrize("wrapping", WRAPPINGS)
def test_every_nesting_is_found_and_kept(wrapping: str, legacy: bool, tmp_path: Path) -> None:
    document = WRAPPINGS[wrapping](network().state_dict())
    torch.save(document, tmp_path / "a.pt", _use_new_zipfile_serialization=not legacy)
    source = open_model(tmp_path / "a.pt")
    prefix = {"module.": "module.", "lightning": "model."}.get(wrapping, "")
    assert list(source.tensors) == [prefix + key for key in network().state_dict()]
    assert torch.equal(source.load(prefix + "3.weight"), network().state_dict()["3.weight"])
    assert same(copy(tmp_path / "a.pt", tmp_path / "b.pt"), document)


def test_several_models_in_a_list(tmp_path: Path) -> None:
    torch.save({"models": [{"a": torch.ones(2)}, {"a": torch.zeros(2)}], "optim": [torch.ones(9)]}, tmp_path / "a.pt")
    source = open_model(tmp_path / "a.pt")
    assert list(source.tensors) == ["0.a", "1.a"] and source.parts == ("0.", "1.")
    rewrite(source, tmp_path / "b.pt", lambda info, load: [(info.name, load() + 1)], {"note": 1})
    assert [model["a"].tolist() for model in torch.load(tmp_path / "b.pt")["models"]] == [[2, 2], [1, 1]]
    assert open_model(tmp_path / "b.pt").metadata == {"note": 1}


def test_parts_of_one_model_under_names_of_their_own(tmp_path: Path) -> None:
    torch.save({"params": {"a": torch.ones(2)}, "batch_stats": {"m": torch.ones(2)}, "step": 3}, tmp_path / "a.pt")
    assert list(open_model(tmp_path / "a.pt").tensors) == ["params.a", "batch_stats.m"]


def test_metadata_of_a_list_is_found_again(tmp_path: Path) -> None:
    torch.save((network().state_dict(), "v1"), tmp_path / "a.pt")
    rewrite(open_model(tmp_path / "a.pt"), tmp_path / "b.pt", lambda info, load: None, {"note": 1})
    assert open_model(tmp_path / "b.pt").metadata == {"note": 1}


@pytest.mark.parametrize("name", ["scaler", "optimal", "scheduled_layer", "opt"])
def test_a_layer_is_no_optimizer_for_its_name(name: str, tmp_path: Path) -> None:
    torch.save({"encoder": {"a": torch.ones(2)}, name: {"weight": torch.ones(2)}}, tmp_path / "a.pt")
    assert list(open_model(tmp_path / "a.pt").tensors) == ["encoder.a", f"{name}.weight"]


def test_only_what_the_transformation_returns_changes(tmp_path: Path) -> None:
    before = checkpoint()
    torch.save(before, tmp_path / "a.pt")
    after = halve(tmp_path / "a.pt", tmp_path / "b.pt")
    assert after["model_state"]["3.weight"].dtype == torch.float16
    assert torch.equal(after["model_state"]["3.weight"], before["model_state"]["3.weight"].half())
    before["model_state"]["0.weight"] = before["model_state"]["0.weight"].half()
    before["model_state"]["3.weight"] = before["model_state"]["3.weight"].half()
    assert same(after, before)


def test_a_model_and_its_average_are_both_weights(tmp_path: Path) -> None:
    model = network().state_dict()
    torch.save({"model": model, "ema": {key: 0 * value for key, value in model.items()}}, tmp_path / "a.pt")
    source = open_model(tmp_path / "a.pt")
    assert source.parts == ("model.", "ema.")
    after = halve(tmp_path / "a.pt", tmp_path / "b.pt")
    assert after["ema"]["3.weight"].dtype == after["model"]["3.weight"].dtype == torch.float16
    assert list(after["ema"]) == list(model)


def test_new_names_take_the_place_of_the_old_one_and_none_drops_it(tmp_path: Path) -> None:
    torch.save({"state_dict": {"a": torch.ones(2, 2), "b": torch.ones(3), "c": torch.ones(1)}}, tmp_path / "a.pt")

    def transform(info: Any, load: Any) -> Any:
        return {"a": [("a_packed", load().int()), ("a_scale", torch.ones(2))], "b": []}.get(info.name)

    rewrite(open_model(tmp_path / "a.pt"), tmp_path / "b.pt", transform)
    assert list(torch.load(tmp_path / "b.pt")["state_dict"]) == ["a_packed", "a_scale", "c"]


def test_tied_weights_stay_tied(tmp_path: Path) -> None:
    weight = nn.Parameter(torch.randn(64, 8))
    torch.save({"emb.weight": weight, "head.weight": weight, "x": weight.detach()[:2]}, tmp_path / "a.pt")
    calls = []

    def transform(info: Any, load: Any) -> Any:
        calls.append(info.name)
        return (
            [("emb.weight", load().to(torch.int8)), ("emb.weight_scale", torch.ones(64, 1))]
            if info.numel > 64
            else None
        )

    kept = copy(tmp_path / "a.pt", tmp_path / "kept.pt")
    assert kept["emb.weight"].data_ptr() == kept["head.weight"].data_ptr() == kept["x"].data_ptr()
    assert isinstance(kept["emb.weight"], nn.Parameter)
    rewrite(open_model(tmp_path / "a.pt"), tmp_path / "b.pt", transform)
    after = torch.load(tmp_path / "b.pt", weights_only=True)
    assert calls == ["emb.weight", "x"]
    assert list(after) == ["emb.weight", "emb.weight_scale", "head.weight", "head.weight_scale", "x"]
    assert after["emb.weight"].data_ptr() == after["head.weight"].data_ptr()


ODD = {
    "scalar": torch.tensor(3.5),
    "empty": torch.empty(0, 4),
    "transposed": torch.arange(12.0).reshape(3, 4).t(),
    "strided": torch.arange(20.0)[::3],
    "expanded": torch.ones(1, 3).expand(5, 3),
    "bool": torch.tensor([True, False]),
    "complex": torch.tensor([1 + 2j]),
    "bfloat16": torch.ones(3, dtype=torch.bfloat16),
    "float8": torch.ones(3).to(torch.float8_e4m3fn),
    "uint16": torch.tensor([1, 65535], dtype=torch.uint16),
    "int64": torch.tensor([2**62, -1]),
}


@pytest.mark.parametrize("change", [False, True])
def test_every_dtype_and_layout_survives(change: bool, tmp_path: Path) -> None:
    torch.save(ODD, tmp_path / "a.pt")
    source = open_model(tmp_path / "a.pt")
    rewrite(source, tmp_path / "b.pt", lambda info, load: [(info.name, load())] if change else None)
    after = torch.load(tmp_path / "b.pt", weights_only=True)
    for name, tensor in ODD.items():
        for found in (source.load(name), after[name]):
            assert found.dtype == tensor.dtype and found.shape == tensor.shape
            assert found.to(torch.complex128).tolist() == tensor.to(torch.complex128).tolist(), name


def test_metadata_of_a_bare_state_dict_is_no_extra_key(tmp_path: Path) -> None:
    torch.save(network().state_dict(), tmp_path / "a.pt")
    rewrite(open_model(tmp_path / "a.pt"), tmp_path / "b.pt", lambda info, load: None, {"note": [1, 2.5]})
    assert open_model(tmp_path / "b.pt").metadata == {"note": [1, 2.5]}
    network().load_state_dict(torch.load(tmp_path / "b.pt", weights_only=True))


def test_metadata_of_a_checkpoint_is_a_key(tmp_path: Path) -> None:
    torch.save(checkpoint(), tmp_path / "a.pt")
    rewrite(open_model(tmp_path / "a.pt"), tmp_path / "b.pt", lambda info, load: None, {"note": 1})
    assert torch.load(tmp_path / "b.pt")["computekit"] == {"note": 1}
    rewrite(open_model(tmp_path / "b.pt"), tmp_path / "c.pt", lambda info, load: None)
    assert open_model(tmp_path / "c.pt").metadata == {"note": 1}


def test_equal_models_are_equal_bytes(tmp_path: Path) -> None:
    torch.save(checkpoint(), tmp_path / "a.pt")
    for name in ("b.pt", "another-name.pt"):
        copy(tmp_path / "a.pt", tmp_path / name)
    assert (tmp_path / "b.pt").read_bytes() == (tmp_path / "another-name.pt").read_bytes()


def test_a_class_in_the_checkpoint_asks_for_trust_and_becomes_plain(tmp_path: Path) -> None:
    torch.save({"args": argparse.Namespace(lr=0.1), "model": network().state_dict()}, tmp_path / "a.pt")
    with pytest.raises(FileProblem, match=r"argparse\.Namespace.*--trust-pickle"):
        open_model(tmp_path / "a.pt")
    assert copy(tmp_path / "a.pt", tmp_path / "b.pt", trust_pickle=True)["args"] == {"lr": 0.1}


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
def test_numpy_numbers_become_plain_ones(legacy: bool, tmp_path: Path) -> None:
    numbers = {"f8": np.float64(0.25), "f4": np.float32(0.5), "i8": np.int64(-3), "b1": np.bool_(True)}
    document = {"model": network().state_dict(), **numbers}
    torch.save(document, tmp_path / "a.pt", _use_new_zipfile_serialization=not legacy)
    after = copy(tmp_path / "a.pt", tmp_path / "b.pt")
    assert [after[name] for name in numbers] == [0.25, 0.5, -3, True]
    assert type(after["f8"]) is float and type(after["b1"]) is bool


def test_a_tensor_with_attributes_is_a_weight_and_keeps_them(tmp_path: Path) -> None:
    tensor, parameter = torch.ones(3), nn.Parameter(torch.zeros(2))
    tensor.note, parameter.note = "a", "b"  # type: ignore[attr-defined]
    torch.save({"t": tensor, "p": parameter}, tmp_path / "a.pt")
    after = copy(tmp_path / "a.pt", tmp_path / "b.pt")
    assert list(open_model(tmp_path / "b.pt").tensors) == ["t", "p"]
    assert after["t"].note == "a" and after["p"].note == "b" and isinstance(after["p"], nn.Parameter)


def test_other_numpy_objects_take_trust(tmp_path: Path) -> None:
    torch.save({"model": network().state_dict(), "classes": np.array(["a", "b"])}, tmp_path / "a.pt")
    with pytest.raises(FileProblem, match=r"numpy\..*--trust-pickle"):
        open_model(tmp_path / "a.pt")


def test_state_dicts_in_nested_lists_are_found_and_keep_metadata(tmp_path: Path) -> None:
    layers = [("linear", (nn.Linear(4, 4).state_dict(), {"bias": True})), ("norm", ({"weight": torch.ones(4)}, {}))]
    torch.save(layers, tmp_path / "a.pt")
    source = open_model(tmp_path / "a.pt")
    assert list(source.tensors) == ["0.1.0.weight", "0.1.0.bias", "1.1.0.weight"]
    rewrite(source, tmp_path / "b.pt", lambda info, load: None, {"note": 1})
    after = torch.load(tmp_path / "b.pt", weights_only=True)
    assert [same(kind, name) for (kind, _), (name, _) in zip(after, layers, strict=True)] == [True, True]
    assert torch.equal(after[0][1][0]["weight"], layers[0][1][0]["weight"]) and after[0][1][1] == {"bias": True}
    assert open_model(tmp_path / "b.pt").metadata == {"note": 1}


def test_an_optimizer_in_a_list_holds_no_weights(tmp_path: Path) -> None:
    document = checkpoint()
    torch.save([document["model_state"], [document["optimizer_state"]]], tmp_path / "a.pt")
    assert list(open_model(tmp_path / "a.pt").tensors) == list(document["model_state"])


@pytest.mark.parametrize("kind", [list, tuple])
def test_an_optimizer_beside_a_state_dict_in_a_list_is_shown_and_stripped(kind: Any, tmp_path: Path) -> None:
    document = checkpoint()
    torch.save(kind([document["model_state"], document["optimizer_state"], 3]), tmp_path / "a.pt")
    source = open_model(tmp_path / "a.pt")
    assert isinstance(source, TorchFile)
    assert [(entry["key"], entry["optimizer"]) for entry in other_content(source)] == [("1", True), ("2", False)]
    rewrite(without_optimizer(source), tmp_path / "b.pt", lambda info, load: None)
    after = torch.load(tmp_path / "b.pt", weights_only=True)
    assert type(after) is kind and after[1:] == kind([None, 3]) and same(after[0], document["model_state"])


def test_checksums_travel_with_the_data_that_is_copied(tmp_path: Path) -> None:
    """What was damaged in the source is still known to be damaged in the copy."""
    torch.save({"a": torch.arange(1000.0), "b": torch.ones(3)}, tmp_path / "m.pt")
    with zipfile.ZipFile(tmp_path / "m.pt") as archive:
        place = archive.getinfo("m/data/0").header_offset
    content = bytearray((tmp_path / "m.pt").read_bytes())
    content[place + 1000] ^= 1
    (tmp_path / "damaged.pt").write_bytes(content)
    for name, damaged in (("m", None), ("damaged", "archive/data/0")):
        rewrite(open_model(tmp_path / f"{name}.pt"), tmp_path / "copy.pt", lambda info, load: None)
        with zipfile.ZipFile(tmp_path / "copy.pt") as archive:
            assert archive.testzip() == damaged


def test_a_file_without_checksums_is_read_and_gets_them(tmp_path: Path) -> None:
    torch.serialization.set_crc32_options(False)
    try:
        torch.save({"a": torch.arange(1000.0)}, tmp_path / "m.pt")
    finally:
        torch.serialization.set_crc32_options(True)
    rewrite(open_model(tmp_path / "m.pt"), tmp_path / "copy.pt", lambda info, load: None)
    with zipfile.ZipFile(tmp_path / "copy.pt") as archive:
        assert archive.testzip() is None
    assert torch.equal(torch.load(tmp_path / "copy.pt")["a"], torch.arange(1000.0))


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (torch.optim.SGD([nn.Parameter(torch.ones(3))], momentum=0.9).state_dict(), "state of an optimizer alone"),
        ({"epoch": 3, "optimizer": {"state": {}, "param_groups": []}}, r"holds epoch, optimizer \(an optimizer's\)"),
        (torch.ones(3, 4), r"one tensor without a name, of shape \[3, 4\]"),
        ([torch.ones(3), torch.ones(2)], "a list of 2 tensors without names"),
        ({}, "an empty dictionary"),
        ({"a": torch.ones(2, 2).to_sparse()}, "are sparse tensors: save it with Tensor.to_dense"),
        (
            {"a": torch.quantize_per_tensor(torch.ones(2), 1.0, 0, torch.qint8)},
            "quantized tensors: give the model from",
        ),
        ({"a": torch.empty(2, device="meta")}, "meta tensors: its values are in no file"),
        ("text", "no dictionary of tensors"),
    ],
)
def test_a_file_without_weights_says_what_it_holds(document: Any, message: str, tmp_path: Path) -> None:
    torch.save(document, tmp_path / "a.pt")
    with pytest.raises(FileProblem, match=f"holds no named weights; .*{message}"):
        open_model(tmp_path / "a.pt")


def test_arrays_and_hostile_calls_without_weights_are_named(tmp_path: Path) -> None:
    import fractions

    import numpy as np

    torch.save({"a": np.ones(3)}, tmp_path / "numpy.pt")
    torch.save({"a": np.ones(3), "b": fractions.Fraction(1, 2)}, tmp_path / "other.pt")
    with pytest.raises(FileProblem, match=r"are numpy arrays: .*torch\.from_numpy"):
        open_model(tmp_path / "numpy.pt", trust_pickle=True)
    with pytest.raises(FileProblem, match=r"wants to import fractions\.Fraction; nothing was run"):
        open_model(tmp_path / "other.pt", trust_pickle=True)


def test_members_that_share_bytes_are_refused(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(100), "b": torch.zeros(100)}, tmp_path / "a.pt")
    with zipfile.ZipFile(tmp_path / "a.pt") as archive:
        offsets = {m.filename.partition("/")[2]: m.header_offset for m in archive.filelist}
    content = bytearray((tmp_path / "a.pt").read_bytes())
    record = content.rindex(b"a/data/1") - 46  # of the directory; its field of the offset is the last one
    content[record + 42 : record + 46] = struct.pack("<I", offsets["data/0"])
    (tmp_path / "a.pt").write_bytes(content)
    with pytest.raises(FileProblem, match="has the header of another"):
        open_model(tmp_path / "a.pt")


@pytest.mark.skipif(not hasattr(torch, "float4_e2m1fn_x2"), reason="a torch without 4-bit floats")
def test_packed_four_bit_floats_pass_through(tmp_path: Path) -> None:
    state = {"a": torch.arange(64, dtype=torch.uint8).reshape(8, 8).view(torch.float4_e2m1fn_x2), "b": torch.ones(3)}
    torch.save(state, tmp_path / "a.pt")
    assert inspection.inspect(tmp_path / "a.pt")["non_finite"] == {}
    rewrite(open_model(tmp_path / "a.pt"), tmp_path / "b.pt", lambda info, load: None)
    after = torch.load(tmp_path / "b.pt", weights_only=True)["a"]
    assert after.dtype == state["a"].dtype and torch.equal(after.view(torch.uint8), state["a"].view(torch.uint8))
    half = conversion.Conversion(dtype=torch.bfloat16)
    with pytest.raises(FileProblem, match="packed 4-bit floats"):
        conversion.convert(open_model(tmp_path / "a.pt"), tmp_path / "c.pt", conversion.kind_of(Path("c.pt")), half)
