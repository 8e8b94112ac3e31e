"""Models in several safetensors files: an index and shards go in, an index and shards come out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from computekit import FileProblem, files, open_model, rewrite
from computekit.models.conversion import Conversion, convert, kind_of

STATE = {"a": torch.ones(4), "b": torch.zeros(4), "c": torch.arange(3)}


def sharded(folder: Path) -> Path:
    first, second = "m-00001-of-00002.safetensors", "m-00002-of-00002.safetensors"
    save_file({"a": STATE["a"], "c": STATE["c"]}, folder / first)
    save_file({"b": STATE["b"]}, folder / second)
    path = folder / "m.safetensors.index.json"
    path.write_text(json.dumps({"metadata": {}, "weight_map": {"a": first, "b": second, "c": first}}))
    return path


def loaded(path: Path) -> dict[str, list[float]]:
    source = open_model(path)
    return {name: source.load(name).tolist() for name in source.tensors}


def write(source: Path, target: Path, factor: float) -> list[str]:
    """Write ``source`` with its weights multiplied; the names of the shards."""
    with files.atomic(target) as temporary:
        rewrite(
            open_model(source), temporary, lambda info, load: [(info.name, load() * factor)], metadata={"by": factor}
        )
    return sorted(set(json.loads(target.read_text())["weight_map"].values()))


def test_shards_are_read_as_one_model(tmp_path: Path) -> None:
    source = open_model(sharded(tmp_path))
    assert loaded(source.path) == {name: tensor.tolist() for name, tensor in STATE.items()}
    rewrite(source, tmp_path / "joined", lambda info, load: None)
    assert {name: t.tolist() for name, t in load_file(tmp_path / "joined").items()} == loaded(source.path)


def test_as_many_shards_come_out_under_names_of_their_own(tmp_path: Path) -> None:
    source, target = sharded(tmp_path), tmp_path / "new.safetensors.index.json"
    shards = write(source, target, 2)
    assert [name[:19] for name in shards] == ["new-00001-of-00002-", "new-00002-of-00002-"]
    assert sorted(load_file(tmp_path / shards[0])) == ["a", "c"]
    assert loaded(target) == {"a": [2.0] * 4, "b": [0.0] * 4, "c": [0, 2, 4]}
    assert open_model(target).metadata == {"by": 2}
    assert json.loads(target.read_text())["metadata"]["total_size"] == 16 + 16 + 24
    assert write(source, target, 2) == shards
    assert {file.name for file in tmp_path.iterdir()} == {source.name, target.name, *shards,
                                                          "m-00001-of-00002.safetensors",
                                                          "m-00002-of-00002.safetensors"}  # fmt: skip


def test_the_new_set_replaces_the_old_one_whole(tmp_path: Path) -> None:
    source, target = sharded(tmp_path), tmp_path / "new.safetensors.index.json"
    old = write(source, target, 2)
    new = write(source, target, 3)
    assert loaded(target)["a"] == [3.0] * 4
    assert old != new
    assert sorted(file.name for file in tmp_path.glob("new-*")) == new


def test_an_error_leaves_the_old_set(tmp_path: Path) -> None:
    source, target = sharded(tmp_path), tmp_path / "new.safetensors.index.json"
    write(source, target, 2)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(ValueError, match="boom"), files.atomic(target) as temporary:
        rewrite(open_model(source), temporary, lambda info, load: None)
        raise ValueError("boom")
    assert sorted(tmp_path.iterdir()) == before
    assert loaded(target)["a"] == [2.0] * 4


def test_ties_hold_across_shards(tmp_path: Path) -> None:
    save_file({"emb": torch.ones(3)}, tmp_path / "1.safetensors", {"format": "pt"})
    save_file({"x": torch.ones(3)}, tmp_path / "2.safetensors", {"format": "pt", "head": "emb"})
    source = tmp_path / "m.safetensors.index.json"
    source.write_text(json.dumps({"weight_map": {"emb": "1.safetensors", "x": "2.safetensors"}}))
    for factor in (1, 2):
        write(source, tmp_path / "n.safetensors.index.json", factor)
        again = open_model(tmp_path / "n.safetensors.index.json")
        assert again.tensors["head"].storage == again.tensors["emb"].storage
        assert again.load("head").tolist() == [factor] * 3


def test_any_kind_converts_to_an_index_and_back(tmp_path: Path) -> None:
    torch.save(STATE, tmp_path / "m.pt")
    target = tmp_path / "m.safetensors.index.json"
    with files.atomic(target) as temporary:
        convert(open_model(tmp_path / "m.pt"), temporary, kind_of(target), Conversion())
    assert len(list(tmp_path.glob("m-00001-of-00001-*.safetensors"))) == 1
    convert(open_model(target), tmp_path / "back.pt", kind_of(tmp_path / "back.pt"), Conversion())
    assert {name: t.tolist() for name, t in torch.load(tmp_path / "back.pt").items()} == loaded(target)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    path = sharded(tmp_path)
    (tmp_path / "m-00002-of-00002.safetensors").unlink()
    with pytest.raises(FileProblem, match=r"m-00002-of-00002[.]safetensors, which is missing"):
        open_model(path)


def test_an_index_of_torch_shards_points_to_the_folder(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(3)}, tmp_path / "pytorch_model-00001-of-00001.bin")
    path = tmp_path / "pytorch_model.bin.index.json"
    path.write_text('{"weight_map": {"a": "pytorch_model-00001-of-00001.bin"}}')
    with pytest.raises(FileProblem, match="give the folder instead"):
        open_model(path)
    assert loaded(tmp_path) == {"a": [1.0] * 3}
