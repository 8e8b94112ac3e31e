"""Model folders: read and rewritten as folders that transformers opens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from computekit import FileProblem, open_model, rewrite


def tiny(folder: Path, tied: bool = True, **options: Any) -> Any:
    """A random two-layer Llama, saved with its config and a file that is no weights."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.LlamaConfig(vocab_size=64, num_key_value_heads=2, tie_word_embeddings=tied, **sizes)
    model = transformers.LlamaForCausalLM(config)
    model.save_pretrained(folder, **options)
    (folder / "tokenizer.json").write_text("{}")
    return model


def logits(folder: Path) -> torch.Tensor:
    from transformers import AutoModelForCausalLM

    with torch.no_grad():
        found: torch.Tensor = AutoModelForCausalLM.from_pretrained(folder)(torch.arange(8)[None]).logits
    return found


@pytest.mark.parametrize("shards", ["5GB", "8KB"])
def test_a_folder_comes_back_as_a_folder(shards: str, tmp_path: Path) -> None:
    tiny(tmp_path / "a", max_shard_size=shards)
    source = open_model(tmp_path / "a")
    rewrite(source, tmp_path / "b", lambda info, load: None, {"note": 1})
    names = {file.name for file in (tmp_path / "a").iterdir()}
    assert {file.name for file in (tmp_path / "b").iterdir()} == names
    assert (len(names) > 5) == (shards == "8KB")
    assert torch.equal(logits(tmp_path / "b"), logits(tmp_path / "a"))
    assert open_model(tmp_path / "b").metadata == {"note": 1}


def test_torch_weights_in_a_folder_become_safetensors_and_stay_tied(tmp_path: Path) -> None:
    model = tiny(tmp_path / "a")
    (tmp_path / "a" / "model.safetensors").unlink()
    torch.save(model.state_dict(), tmp_path / "a" / "pytorch_model.bin")
    source = open_model(tmp_path / "a")
    assert source.tensors["lm_head.weight"].storage == source.tensors["model.embed_tokens.weight"].storage
    rewrite(source, tmp_path / "b", lambda info, load: None)
    assert "lm_head.weight" not in load_file(tmp_path / "b" / "model.safetensors")
    assert not (tmp_path / "b" / "pytorch_model.bin").exists()
    with torch.no_grad():
        assert torch.equal(logits(tmp_path / "b"), model(torch.arange(8)[None]).logits)


def test_torch_shards_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for number, name in enumerate("xy"):
        torch.save({name: torch.full((3,), float(number))}, tmp_path / "a" / f"pytorch_model-0000{number}-of-00002.bin")
    index = {"weight_map": {name: f"pytorch_model-0000{n}-of-00002.bin" for n, name in enumerate("xy")}}
    (tmp_path / "a" / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    rewrite(open_model(tmp_path / "a"), tmp_path / "b", lambda info, load: None)
    again = open_model(tmp_path / "b")
    assert again.load("x").tolist() == [0, 0, 0] and again.load("y").tolist() == [1, 1, 1]
    (tmp_path / "a" / "pytorch_model-00001-of-00002.bin").unlink()
    with pytest.raises(FileProblem, match="missing"):
        open_model(tmp_path / "a")


def test_a_quantization_config_goes_where_transformers_looks(tmp_path: Path) -> None:
    tiny(tmp_path / "a")
    rewrite(open_model(tmp_path / "a"), tmp_path / "b", lambda info, load: None, {"quantization_config": {"bits": 8}})
    before, after = (json.loads((tmp_path / name / "config.json").read_text()) for name in "ab")
    assert after == {**before, "quantization_config": {"bits": 8}}


def test_a_damaged_config_is_named(tmp_path: Path) -> None:
    tiny(tmp_path / "a")
    (tmp_path / "a" / "config.json").write_text("{")
    with pytest.raises(FileProblem, match=r"config\.json: is not JSON"):
        open_model(tmp_path / "a")


@pytest.mark.parametrize("name", ["adapter_model", "diffusion_pytorch_model"])
def test_other_names_beside_a_configuration(name: str, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    save_file({"a": torch.ones(3)}, tmp_path / "a" / f"{name}.safetensors")
    with pytest.raises(FileProblem, match=f"holds {name}.safetensors: give one of these files"):
        open_model(tmp_path / "a")
    (tmp_path / "a" / "config.json").write_text("{}")
    rewrite(open_model(tmp_path / "a"), tmp_path / "b", lambda info, load: None)
    assert {file.name for file in (tmp_path / "b").iterdir()} == {f"{name}.safetensors", "config.json"}


@pytest.mark.parametrize("name", ["adapter_model", "diffusion_pytorch_model"])
def test_torch_files_of_other_names_beside_a_configuration(name: str, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    torch.save({"a": torch.ones(3)}, tmp_path / "a" / f"{name}.bin")
    (tmp_path / "a" / "adapter_config.json").write_text("{}")
    rewrite(open_model(tmp_path / "a"), tmp_path / "b", lambda info, load: None)
    assert {file.name for file in (tmp_path / "b").iterdir()} == {f"{name}.safetensors", "adapter_config.json"}
