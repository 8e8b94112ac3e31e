"""Text: windows of bytes, or of the tokens of a model's own tokenizer."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import click
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from computekit import options
from computekit.datasets import DataProblem, from_text, load_data
from computekit.evaluation import evaluate
from computekit.text import UNSCORED, Window, windows

WORDS = [f"w{i}" for i in range(50)]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "words.txt"
    path.write_text(" ".join(WORDS[i * i % 50] for i in range(3000)))
    return path


def folder_with_tokenizer(path: Path, special: bool, **config: Any) -> Path:
    """A Hugging Face folder of a model that knows `WORDS`; with ``special``, each text is put between two tokens."""
    tokenizers, transformers = pytest.importorskip("tokenizers"), pytest.importorskip("transformers")
    vocabulary = {word: i for i, word in enumerate(["[UNK]", "[CLS]", "[SEP]", *WORDS, "a"])}
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    if special:
        inner.post_processor = tokenizers.processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    transformers.PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="[UNK]").save_pretrained(path)
    (path / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": len(vocabulary), **config}))
    return path


@given(st.integers(0, 200), st.integers(2, 20), st.integers(1, 20), st.integers(0, 2), st.integers(0, 2))
def test_every_scored_token_is_scored_once_and_follows_its_input(
    count: int, length: int, stride: int, before: int, after: int
) -> None:
    tokens = torch.arange(1000, 1000 + count)
    around = (torch.arange(before), torch.arange(10, 10 + after))
    room = length - before - after
    if room < 1 or stride > room:
        return
    split = windows(tokens, Window(length, stride), around)
    scored = split.targets[split.targets != UNSCORED]
    assert scored.tolist() == sorted(set(scored.tolist()))
    if len(split):
        assert scored.numel() == stride * len(split)
        assert set(scored.diff().tolist()) <= {1}
        assert (split.targets != UNSCORED).sum(1).unique().tolist() == [stride]
        hits = split.targets != UNSCORED
        assert torch.equal(split.inputs[hits] + 1, split.targets[hits])
        assert split.inputs[:, :before].tolist() == [list(range(before))] * len(split)
        assert count - int(scored[-1] - 1000) <= stride  # no window is missing at the end


def test_overlapping_windows_score_only_new_tokens_and_say_so() -> None:
    data = from_text("t", bytes(range(97, 123)) * 60, "", window=16)
    text = data.text
    assert text is not None and data.windows == "windows of 16 bytes"
    from computekit.text import from_bytes

    sliding = from_bytes("t", text, "", Window(16, 4))
    assert sliding.windows == "windows of 16 bytes, 4 new in each"
    module = torch.nn.Sequential(torch.nn.Embedding(256, 8), torch.nn.Linear(8, 256))
    found = evaluate(module, sliding.test, data.task, torch.device("cpu"))
    with torch.no_grad():
        loss = torch.nn.functional.cross_entropy(
            module(sliding.test.inputs).flatten(0, 1), sliding.test.targets.flatten()
        )
    assert found.value == pytest.approx(math.exp(loss), rel=1e-5)
    assert f"{len(sliding.test)} windows of 16 tokens, 4 scored in each" in found.method


@pytest.mark.parametrize("special", [False, True])
def test_text_comes_in_the_tokens_of_a_folder_with_a_tokenizer(tmp_path: Path, text: Path, special: bool) -> None:
    folder = folder_with_tokenizer(tmp_path / "hf", special)
    data = load_data(str(text), model=folder, window=Window(12))
    assert data.classes == 54 and data.sample_shape == (12,)
    first = [3 + i * i % 50 for i in range(12)]
    if special:
        assert data.train.inputs[0].tolist() == [1, *first[:10], 2]
        assert data.train.targets[0].tolist() == [UNSCORED, *first[1:11], UNSCORED]
    else:
        assert data.train.inputs[0].tolist() == first
    weights = folder / "model.safetensors"
    weights.touch()
    assert load_data(str(text), model=weights, window=Window(12)).sha256() == data.sha256()
    text.write_text(text.read_text() * 4)
    assert load_data(str(text), model=folder).sample_shape == (256,)


def test_windows_keep_within_the_models_context(tmp_path: Path, text: Path) -> None:
    folder = folder_with_tokenizer(tmp_path / "hf", False, max_position_embeddings=32)
    assert load_data(str(text), model=folder).sample_shape == (32,)
    with pytest.raises(DataProblem, match="33 tokens do not fit the model's context of 32"):
        load_data(str(text), model=folder, window=Window(33))


def test_what_cannot_be_read_as_tokens_is_refused(tmp_path: Path, text: Path) -> None:
    folder = folder_with_tokenizer(tmp_path / "hf", False)
    with pytest.raises(DataProblem, match="has 3000 tokens of the model's tokenizer; a text needs at least 6000"):
        load_data(str(text), model=folder, window=Window(200))
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(DataProblem, match="tokenizer cannot be read"):
        load_data(str(text), model=folder)
    for file in folder.glob("tokenizer*"):
        file.unlink()
    with pytest.raises(DataProblem, match="brings no tokenizer"):
        load_data(str(text), model=folder)


def test_models_without_a_tokenizer_read_bytes(tmp_path: Path, text: Path) -> None:
    plain = load_data(str(text))
    assert load_data(str(text), model=tmp_path / "model.pt").sha256() == plain.sha256()
    assert load_data(str(text), model=tmp_path / "model.pt", window=Window(64)).sample_shape == (64,)
    (tmp_path / "bytes").mkdir()
    (tmp_path / "bytes" / "config.json").write_text('{"model_type": "llama", "vocab_size": 256}')
    assert load_data(str(text), model=tmp_path / "bytes").sha256() == plain.sha256()


def test_only_texts_have_windows() -> None:
    with pytest.raises(DataProblem, match="is no text"):
        load_data("digits", window=Window(8))


@pytest.mark.parametrize("word", ["", "a", "1", "0", "8/0", "8/9", "8/", "-8", "8/-1", "8.5"])
def test_window_sizes_that_make_no_sense_are_wrong_usage(word: str) -> None:
    with pytest.raises(click.BadParameter):
        options.WindowSize().convert(word, None, None)


def test_window_sizes_are_a_length_and_a_stride() -> None:
    convert = options.WindowSize().convert
    assert convert("256", None, None) == Window(256) and convert("256/128", None, None) == Window(256, 128)
