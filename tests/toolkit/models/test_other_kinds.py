"""TorchScript, exported programs, pickled modules, ONNX and GGUF: their weights are read, their code is not run."""

from __future__ import annotations

import struct
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from computekit import FileProblem, MissingExtra, open_model, rewrite


class Net(nn.Module):
    """A module with buffers that are saved and one that is not."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.fc = nn.Linear(4, 2)
        self.register_buffer("scratch", torch.ones(2), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.fc(self.norm(self.conv(x)).mean((2, 3)))
        return y


@pytest.fixture
def net() -> nn.Module:
    torch.manual_seed(0)
    return Net().eval()


def holds(path: Path, state: dict[str, torch.Tensor], **options: Any) -> bool:
    source = open_model(path, **options)
    assert set(source.tensors) >= set(state)
    return all(torch.equal(source.load(name), tensor) for name, tensor in state.items())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torchscript(net: nn.Module, tmp_path: Path) -> None:
    torch.jit.script(net).save(str(tmp_path / "script.pt"))
    torch.jit.trace(net, torch.ones(1, 3, 8, 8)).save(str(tmp_path / "trace.pt"))
    for name in ("script.pt", "trace.pt"):
        assert open_model(tmp_path / name).format == "torchscript"
        assert holds(tmp_path / name, net.state_dict())
    with pytest.raises(FileProblem, match="can be read but not written"):
        rewrite(open_model(tmp_path / "script.pt"), tmp_path / "b", lambda info, load: None)


def test_exported_program(net: nn.Module, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.export.save(torch.export.export(net, (torch.ones(2, 3, 8, 8),)), tmp_path / "a.pt2")
    assert open_model(tmp_path / "a.pt2").format == "pt2"
    assert holds(tmp_path / "a.pt2", net.state_dict())


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
@pytest.mark.parametrize("nested", [False, True], ids=["module", "checkpoint"])
def test_a_trusted_module_is_read_as_its_state_dict(nested: bool, legacy: bool, net: nn.Module, tmp_path: Path) -> None:
    document = {"epoch": 3, "model": net} if nested else net
    torch.save(document, tmp_path / "a.pt", _use_new_zipfile_serialization=not legacy)
    with pytest.raises(FileProblem, match=r"a pickled module that wants to import .*--trust-pickle"):
        open_model(tmp_path / "a.pt")
    source = open_model(tmp_path / "a.pt", trust_pickle=True)
    assert list(source.tensors) == list(net.state_dict())
    rewrite(source, tmp_path / "b.pt", lambda info, load: None)
    after = torch.load(tmp_path / "b.pt", weights_only=True)
    net.load_state_dict(after["model"] if nested else after)
    assert not nested or after["epoch"] == 3


def onnx_model(external: bool, path: Path) -> dict[str, torch.Tensor]:
    onnx = pytest.importorskip("onnx")
    import numpy as np

    weight = np.arange(6, dtype=np.float32).reshape(2, 3)
    steps = onnx.helper.make_tensor("steps", onnx.TensorProto.INT64, [2], [5, 6])
    half = onnx.helper.make_tensor("half", onnx.TensorProto.FLOAT16, [2], [1.0, 2.0])
    initializers = [onnx.numpy_helper.from_array(weight, "w"), steps, half]
    x, y = (onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [2, 3]) for n in "xy")
    graph = onnx.helper.make_graph([onnx.helper.make_node("Add", ["x", "w"], ["y"])], "g", [x], [y], initializers)
    onnx.save(
        onnx.helper.make_model(graph), path, save_as_external_data=external, location="data.bin", size_threshold=0
    )
    return {"w": torch.from_numpy(weight), "steps": torch.tensor([5, 6]), "half": torch.tensor([1.0, 2.0]).half()}


@pytest.mark.parametrize("external", [False, True])
def test_onnx(external: bool, tmp_path: Path) -> None:
    state = onnx_model(external, tmp_path / "a.onnx")
    assert open_model(tmp_path / "a.onnx").format == "onnx"
    assert holds(tmp_path / "a.onnx", state)


def test_onnx_weights_in_constant_nodes_are_found(tmp_path: Path) -> None:
    """Paddle's exporter makes no initializers; numbers without dimensions and integers are sizes and axes."""
    onnx = pytest.importorskip("onnx")
    import numpy as np

    held = {"scale": np.float32([7]), "w": np.ones((2, 3), np.float32), "axes": np.array([0]), "two": np.float32(2)}
    nodes = [
        onnx.helper.make_node("Constant", [], [name], value=onnx.numpy_helper.from_array(np.asarray(value)))
        for name, value in held.items()
    ]
    x, y = (onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [2, 3]) for n in "xy")
    nodes.append(onnx.helper.make_node("Add", ["x", "w"], ["y"]))
    onnx.save(onnx.helper.make_model(onnx.helper.make_graph(nodes, "g", [x], [y], [])), tmp_path / "a.onnx")
    assert holds(tmp_path / "a.onnx", {"scale": torch.tensor([7.0]), "w": torch.ones(2, 3)})


def test_onnx_weights_inside_branches_are_found(tmp_path: Path) -> None:
    """Voice detectors have a network for each sampling rate, in the two branches of an If, with the same names."""
    onnx = pytest.importorskip("onnx")
    import numpy as np

    def branch(value: float, nodes: list[Any]) -> Any:
        weight = onnx.numpy_helper.from_array(np.full((2, 3), value, np.float32), "w")
        y = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [2, 3])
        return onnx.helper.make_graph([onnx.helper.make_node("Add", ["x", "w"], ["y"]), *nodes], "b", [], [y], [weight])

    inner = onnx.helper.make_node("If", ["c"], ["z"], "deep", then_branch=branch(3, []), else_branch=branch(4, []))
    outer = onnx.helper.make_node("If", ["c"], ["y"], then_branch=branch(1, []), else_branch=branch(2, [inner]))
    x, y = (onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [2, 3]) for n in "xy")
    c = onnx.helper.make_tensor_value_info("c", onnx.TensorProto.BOOL, [])
    first = onnx.numpy_helper.from_array(np.zeros((2, 3), np.float32), "w")
    onnx.save(onnx.helper.make_model(onnx.helper.make_graph([outer], "g", [x, c], [y], [first])), tmp_path / "a.onnx")
    names = ("w", "y.then_branch.w", "y.else_branch.w", "y.else_branch.deep.then_branch.w",
             "y.else_branch.deep.else_branch.w")  # fmt: skip
    assert holds(tmp_path / "a.onnx", {name: torch.full((2, 3), float(i)) for i, name in enumerate(names)})


def test_onnx_weights_outside_the_folder_are_not_opened(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    onnx_model(True, tmp_path / "inner" / "a.onnx")
    (tmp_path / "inner" / "data.bin").rename(tmp_path / "data.bin")
    raw = (tmp_path / "inner" / "a.onnx").read_bytes()
    import onnx

    model = onnx.ModelProto.FromString(raw)
    for location in ("../data.bin", str(tmp_path / "data.bin"), "data.bin"):
        for tensor in model.graph.initializer:
            if tensor.external_data:
                tensor.external_data[0].value = location
        (tmp_path / "inner" / "a.onnx").write_bytes(model.SerializeToString())
        with pytest.raises(FileProblem, match="not in its folder"):
            open_model(tmp_path / "inner" / "a.onnx")


def test_onnx_without_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    onnx_model(False, tmp_path / "a.onnx")
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(MissingExtra, match=r"computekit\[onnx\]"):
        open_model(tmp_path / "a.onnx")


def gguf(path: Path, tensors: list[tuple[str, Any, int, bytes]], pairs: bytes = b"", count: int = 0) -> Path:
    """A GGUF 3 file by hand: name, sizes (fastest first), type number and data of each tensor."""
    head, data = b"", b""
    for name, sizes, kind, content in tensors:
        head += struct.pack("<Q", len(name)) + name.encode() + struct.pack(f"<I{len(sizes)}Q", len(sizes), *sizes)
        head += struct.pack("<IQ", kind, len(data))
        data += content + b"\0" * (-len(content) % 32)
    start = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), count) + pairs + head
    path.write_bytes(start + b"\0" * (-len(start) % 32) + data)
    return path


def test_gguf_plain_and_quantized(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    block = struct.pack("<e32b", 0.5, *range(-16, 16))  # Q8_0: a half-precision scale and 32 bytes
    tensors = [
        ("a", (3, 2), 0, struct.pack("<6f", *range(6))),
        ("b", (32, 1), 8, block),
        ("c", (2,), 30, torch.ones(2).bfloat16().view(torch.uint8).numpy().tobytes()),
    ]
    source = open_model(gguf(tmp_path / "a.gguf", tensors))
    assert source.tensors["a"].shape == (2, 3) and source.tensors["b"].encoding == "Q8_0"
    assert torch.equal(source.load("a"), torch.arange(6.0).reshape(2, 3))
    assert torch.equal(source.load("b"), 0.5 * torch.arange(-16.0, 16).reshape(1, 32))
    assert torch.equal(source.load("c"), torch.ones(2).bfloat16())


def key(name: str, kind: int, value: bytes) -> bytes:
    return struct.pack("<Q", len(name)) + name.encode() + struct.pack("<I", kind) + value


@pytest.mark.parametrize(
    "damage",
    [
        lambda p: gguf(p, [("a", (2**40, 2**40), 0, b"")]),
        lambda p: gguf(p, [("a", (64,), 0, b"\0" * 8)]),
        lambda p: gguf(p, [("a", (33,), 8, b"\0" * 34)]),
        lambda p: gguf(p, [("a", (4,), 99, b"\0" * 16)]),
        lambda p: gguf(p, [("a", (1,), 0, b"\0" * 4)] * 2),
        lambda p: gguf(p, [("a", (64,), 0, b"\0" * 4), ("b", (1,), 0, b"\0" * 252)]),
        lambda p: gguf(p, [], key("k", 9, struct.pack("<IQ", 8, 2**60)), 1),
        lambda p: gguf(p, [], key("k", 9, struct.pack("<IQ", 4, 2**62)), 1),
        lambda p: gguf(p, [], key("k", 8, struct.pack("<Q", 2**63)), 1),
        lambda p: gguf(p, [], key("k", 77, b""), 1),
        lambda p: gguf(p, [], b"", 2**63),
        lambda p: gguf(p, [], key("general.alignment", 4, struct.pack("<I", 0)), 1),
        lambda p: p.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 2**63, 0)),
        lambda p: p.write_bytes(b"GGUF" + struct.pack("<IQQ", 1, 0, 0)),
        lambda p: p.write_bytes(b"GGUF"),
    ],
)
def test_absurd_gguf_headers_are_refused(damage: Callable[[Path], Any], tmp_path: Path) -> None:
    damage(tmp_path / "a.gguf")
    with pytest.raises(FileProblem):
        open_model(tmp_path / "a.gguf")


def test_scripts_whose_weights_have_no_names_are_refused(net: nn.Module, tmp_path: Path) -> None:
    torch.jit.save(torch.jit.freeze(torch.jit.script(net.eval())), tmp_path / "frozen.pt")  # type: ignore[no-untyped-call]
    with pytest.raises(FileProblem, match=r"constants of its code \(torch\.jit\.freeze\)"):
        open_model(tmp_path / "frozen.pt")
