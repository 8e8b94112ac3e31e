"""bf16 and fp16: two bytes a value in the file, and a module that computes in them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

import computekit
from computekit.cli import main
from computekit.testing import make_model


def quantize(*words: str) -> str:
    result = CliRunner().invoke(main, ["quantize", *words])
    assert result.exit_code == 0, result.stderr
    return result.stdout


@pytest.mark.parametrize(("scheme", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_two_bytes_in_the_file_and_in_the_arithmetic(scheme: str, dtype: torch.dtype, tmp_path: Path) -> None:
    path = make_model(tmp_path / "model.pt")
    quantize("--scheme", scheme, str(path))
    state = torch.load(tmp_path / f"model-{scheme}.pt", weights_only=True)["state_dict"]
    assert {tensor.dtype for tensor in state.values()} == {dtype}
    before, after = (computekit.load_module(file)[0] for file in (path, tmp_path / f"model-{scheme}.pt"))
    inputs = torch.randn(5, 64, generator=torch.Generator().manual_seed(0))
    outputs = after(inputs)
    assert outputs.dtype == dtype
    torch.testing.assert_close(outputs.float(), before(inputs), rtol=0.05, atol=0.05)


def test_the_rest_of_an_integer_model_in_two_bytes(tmp_path: Path) -> None:
    path = make_model(tmp_path / "model.pt")
    quantize("--int8", "--activations", "dynamic", "--rest", "bf16", str(path))
    file = computekit.open_model(tmp_path / "model-int8.pt")
    kinds = {name: info.dtype for name, info in file.tensors.items() if not name.endswith("_scale")}
    assert {dtype for name, dtype in kinds.items() if name.endswith("weight")} == {torch.int8}
    assert {dtype for name, dtype in kinds.items() if name.endswith("bias")} == {torch.bfloat16}
    module, _, _ = computekit.load_module(file.path)
    inputs = torch.randn(5, 64, generator=torch.Generator().manual_seed(0))
    exact = computekit.load_module(path)[0](inputs)
    assert torch.cosine_similarity(module(inputs).float(), exact).min() > 0.99


def test_what_is_excluded_keeps_its_type(tmp_path: Path) -> None:
    path = make_model(tmp_path / "model.pt")
    first = next(iter(computekit.open_model(path).tensors))
    quantize("--scheme", "bf16", "--exclude", first, str(path))
    tensors = computekit.open_model(tmp_path / "model-bf16.pt").tensors
    assert tensors[first].dtype == torch.float32
    assert {info.dtype for name, info in tensors.items() if name != first} == {torch.bfloat16}


def test_values_that_fp16_cannot_hold_are_refused(tmp_path: Path) -> None:
    torch.save({"fc.weight": torch.full((64, 64), 1e6)}, tmp_path / "big.pt")
    result = CliRunner().invoke(main, ["quantize", "--scheme", "fp16", str(tmp_path / "big.pt")])
    assert result.exit_code == 1
    assert "tensor 'fc.weight' holds values beyond 65504, the largest of fp16; bf16 holds them" in result.stderr
    assert [file.name for file in tmp_path.iterdir()] == ["big.pt"]


def test_a_file_that_asks_for_another_type_is_damaged(tmp_path: Path) -> None:
    from computekit.models import ArchRef, build, save_module

    arch = ArchRef("mlp", {"in_features": 64, "classes": 10})
    save_module(build(arch), tmp_path / "odd.pt", arch, compression={"dtype": "complex64"})
    with pytest.raises(computekit.FileProblem, match="wants to compute in 'complex64'"):
        computekit.load_module(tmp_path / "odd.pt")


def test_a_runtime_that_nobody_has_is_named(tmp_path: Path) -> None:
    from computekit.models import ArchRef, build, save_module

    arch = ArchRef("mlp", {"in_features": 64, "classes": 10})
    save_module(build(arch), tmp_path / "odd.pt", arch, compression={"runtime": {"name": "abacus"}})
    with pytest.raises(computekit.FileProblem, match="is run by 'abacus', which no plugin here has"):
        computekit.load_module(tmp_path / "odd.pt")
