"""ONNX models in fewer bits: the graph computes what it did, in a runtime that knows nothing of computekit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from computekit.cli import main
from computekit.models import onnx_files, open_model, roles

onnx = pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

FLOAT = TensorProto.FLOAT


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def weight(name: str, *shape: int) -> Any:
    values = np.random.default_rng(len(name)).standard_normal(shape).astype("f4") / 8
    return numpy_helper.from_array(values, name)


def save(nodes: list[Any], weights: list[Any], shape: list[Any], opset: int = 17, **about: Any) -> Any:
    """A model of one input ``x`` and one output ``y`` as m.onnx."""
    inputs = [helper.make_tensor_value_info("x", FLOAT, shape)]
    if about.get("ir_version", 9) < 4:
        inputs += [helper.make_tensor_value_info(w.name, w.data_type, w.dims) for w in weights]
    graph = helper.make_graph(
        nodes, "g", inputs, [helper.make_tensor_value_info("y", FLOAT, ["rows", "columns"])], weights
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], **{"ir_version": 9, **about})
    onnx.save(model, "m.onnx")
    return model


def network(**about: Any) -> Any:
    """A convolution, a linear layer of either kind, an LSTM and a bias."""
    nodes = [
        helper.make_node("Conv", ["x", "c"], ["h0"], pads=[1, 1]),  # (2, 32, 24)
        helper.make_node("Transpose", ["h0"], ["h1"], perm=[2, 0, 1]),
        helper.make_node("LSTM", ["h1", "lw", "lr"], ["h2"], hidden_size=16),  # (24, 1, 2, 16)
        helper.make_node("Reshape", ["h2", "shape"], ["h3"]),
        helper.make_node("MatMul", ["h3", "onnx::MatMul_7"], ["h4"]),
        helper.make_node("Gemm", ["h4", "gw", "gb"], ["y"], transB=1),
    ]
    weights = [
        weight("c", 32, 8, 3), weight("lw", 1, 64, 32), weight("lr", 1, 64, 16), weight("onnx::MatMul_7", 16, 40),
        weight("gw", 12, 40), weight("gb", 12), numpy_helper.from_array(np.array([48, 16]), "shape"),
    ]  # fmt: skip
    return save(nodes, weights, ["batch", 8, 24], **about)


def run(path: str, *shape: int) -> np.ndarray[Any, Any]:
    session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
    x = np.random.default_rng(0).standard_normal(shape).astype("f4")
    [y] = session.run(None, {"x": x})
    return np.asarray(y)


def near(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> float:
    return float((one * other).sum() / np.sqrt((one**2).sum() * (other**2).sum()))


def carried_out(*words: str) -> None:
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, result.stderr


def refused(*words: str) -> str:
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 1 and not isinstance(result.exception, AssertionError), result.stderr
    assert not Path("out.onnx").exists()
    return result.stderr


@pytest.mark.parametrize("about", [{}, {"opset": 11}, {"ir_version": 3, "opset": 9}])
def test_an_onnx_model_in_8_bits_computes_what_it_did(about: dict[str, int]) -> None:
    network(**about)
    carried_out("quantize", "--int8", "m.onnx", "--allow-noop")
    onnx.checker.check_model("m-int8.onnx")
    assert near(run("m-int8.onnx", 2, 8, 24), run("m.onnx", 2, 8, 24)) > 0.999
    before, after = open_model("m.onnx"), open_model("m-int8.onnx")
    assert after.tensors["lw"].dtype == torch.int8 and after.tensors["lw_scale"].shape == (1, 64)
    assert all(torch.equal(before.load(name), after.load(name)) for name in ("gb", "shape"))
    assert "is quantized already" in refused("quantize", "--int8", "m-int8.onnx", "-o", "out.onnx")


def test_dequantize_gives_the_graph_back_its_floats() -> None:
    model = network()
    carried_out("quantize", "--int8", "m.onnx", "--allow-noop")
    carried_out("dequantize", "m-int8.onnx", "-o", "again.onnx")
    assert [node.op_type for node in onnx.load("again.onnx").graph.node] == [node.op_type for node in model.graph.node]
    assert np.array_equal(run("again.onnx", 2, 8, 24), run("m-int8.onnx", 2, 8, 24))
    before, stored, after = open_model("m.onnx"), open_model("m-int8.onnx"), open_model("again.onnx")
    assert set(after.tensors) == set(before.tensors)
    for name in ("c", "lw", "onnx::MatMul_7", "gw"):
        scale = stored.load(f"{name}_scale").reshape(-1, 1)
        error = (after.load(name) - before.load(name)).abs()
        error = (error.t() if before.tensors[name].transposed else error).reshape(len(scale), -1)
        assert bool((error <= scale / 2 * (1 + 1e-5)).all())


def test_what_a_tensor_is_follows_from_the_graph() -> None:
    network()
    tensors = open_model("m.onnx").tensors
    found = {name: roles.of(info, tensors) for name, info in tensors.items()}
    assert found["c"] == "conv"
    assert {found[name] for name in ("lw", "lr", "onnx::MatMul_7", "gw")} == {"linear"}
    assert {found[name] for name in ("gb", "shape")} == {"ambiguous", "not float"}


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("way", ["MatMul", "Gemm", "first"])
def test_every_output_has_a_scale_of_its_own(way: str, transposed: bool) -> None:
    sizes = np.logspace(-3, 1, 32).astype("f4").reshape(1, 32)
    values = np.random.default_rng(0).standard_normal((32, 32)).astype("f4") * (sizes.T if way == "first" else sizes)
    w = numpy_helper.from_array(np.ascontiguousarray(values.T if transposed else values), "w")
    nodes = [helper.make_node("Transpose", ["w"], ["t"], perm=[1, 0])] if transposed else []
    seen = "t" if transposed else "w"
    if way == "Gemm" and transposed:
        nodes = [helper.make_node("Gemm", ["x", "w"], ["y"], transB=1)]
    else:
        operator = "MatMul" if way == "first" else way
        nodes.append(helper.make_node(operator, [seen, "x"] if way == "first" else ["x", seen], ["y"]))
    save(nodes, [w], ["n", 32] if way != "first" else [32, "n"])
    carried_out("quantize", "--int8", "m.onnx", "--allow-noop")
    shape = (32, 32)
    before, after = run("m.onnx", *shape), run("m-int8.onnx", *shape)
    axis = 1 if way == "first" else 0  # of the samples
    error = np.abs(after - before).max(axis) / np.abs(before).max(axis)
    assert error.max() < 0.02
    carried_out("dequantize", "m-int8.onnx", "-o", "again.onnx")
    assert np.array_equal(run("again.onnx", *shape), after)


def test_a_table_is_an_embedding_unless_it_is_multiplied_by_too() -> None:
    nodes = [
        helper.make_node("Cast", ["x"], ["i"], to=TensorProto.INT64),
        helper.make_node("Gather", ["a", "i"], ["h"]),
        helper.make_node("Gather", ["b", "i"], ["k"]),
        helper.make_node("Transpose", ["b"], ["t"]),
        helper.make_node("Add", ["h", "k"], ["s"]),
        helper.make_node("MatMul", ["s", "t"], ["y"]),
    ]
    save(nodes, [weight("a", 40, 16), weight("b", 40, 16)], ["n"])
    tensors = open_model("m.onnx").tensors
    assert [roles.of(tensors[name], tensors) for name in "ab"] == ["embedding", "linear"]
    carried_out("quantize", "--int8", "m.onnx", "--allow-noop")
    assert near(run("m-int8.onnx", 3), run("m.onnx", 3)) > 0.999


def test_weights_in_branches_and_constant_nodes_are_written() -> None:
    def branch(name: str) -> Any:
        nodes = [helper.make_node("MatMul", ["x", name], [f"{name}_product"])]
        output = helper.make_tensor_value_info(f"{name}_product", FLOAT, None)
        return helper.make_graph(nodes, name, [], [output], [weight(name, 16, 16)])

    nodes = [
        helper.make_node("Constant", [], ["k"], value=weight("k", 16, 32)),
        helper.make_node("If", ["flag"], ["h"], then_branch=branch("one"), else_branch=branch("two"), name="choice"),
        helper.make_node("MatMul", ["h", "k"], ["y"]),
    ]
    save(nodes, [numpy_helper.from_array(np.array(True), "flag")], ["n", 16])
    carried_out("quantize", "--int8", "m.onnx", "--allow-noop")
    tensors = open_model("m-int8.onnx").tensors
    assert {tensors[name].dtype for name in ("k", "choice.then_branch.one", "choice.else_branch.two")} == {torch.int8}
    assert near(run("m-int8.onnx", 4, 16), run("m.onnx", 4, 16)) > 0.999


def test_weights_in_other_files_come_into_the_new_one() -> None:
    model = network()
    onnx.save(model, "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    carried_out("quantize", "--int8", "m.onnx", "-o", "out.onnx", "--allow-noop")
    Path("m.data").unlink()
    Path("m.onnx").unlink()
    network()
    assert near(run("out.onnx", 2, 8, 24), run("m.onnx", 2, 8, 24)) > 0.999


def test_the_limit_of_one_file_is_that_of_what_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    model = save([helper.make_node("MatMul", ["x", "w"], ["y"])], [weight("w", 64, 64)], ["n", 64])
    onnx.save(model, "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    monkeypatch.setattr(onnx_files, "MAX_BYTES", 8000)  # between 4 and 16 KB of weights
    assert "would take more than 2 GB" in refused("convert", "m.onnx", "out.onnx")
    carried_out("quantize", "--int8", "m.onnx", "-o", "out.onnx", "--allow-noop")


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_half_the_bytes_become_floats_again_in_the_graph(dtype: str) -> None:
    network()
    carried_out("convert", "m.onnx", "out.onnx", "--dtype", dtype)
    assert near(run("out.onnx", 2, 8, 24), run("m.onnx", 2, 8, 24)) > 0.999
    carried_out("convert", "out.onnx", "again.onnx", "--dtype", "fp32")
    assert np.array_equal(run("again.onnx", 2, 8, 24), run("out.onnx", 2, 8, 24))


def test_what_a_graph_cannot_hold_is_refused() -> None:
    network(opset=12)
    torch.save({"a.weight": torch.ones(4, 4)}, "a.pt")
    assert "8 bits with a scale per row" in refused("quantize", "--int4", "m.onnx", "-o", "out.onnx", "--allow-noop")
    words = ["quantize", "--int8", "--activations", "dynamic", "m.onnx", "-o", "out.onnx", "--allow-noop"]
    assert "computes in floats" in refused(*words)
    assert "without bfloat16; use fp16" in refused("convert", "m.onnx", "out.onnx", "--dtype", "bf16")
    assert "only ONNX models become ONNX models" in refused("convert", "a.pt", "out.onnx")


def test_a_name_that_is_taken_is_said() -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["w_scale"]), helper.make_node("MatMul", ["w_scale", "v"], ["y"])]
    save(nodes, [weight("w", 64, 64), weight("v", 64, 64)], ["n", 64])
    told = refused("quantize", "--int8", "m.onnx", "-o", "out.onnx")
    assert "has a value called 'w_scale'" in told and "--exclude 'w'" in told
    carried_out("quantize", "--int8", "m.onnx", "-o", "out.onnx", "--exclude", "w")
    assert near(run("out.onnx", 3, 64), run("m.onnx", 3, 64)) > 0.999
