"""Hostile files: whatever they want to run is never run, however it is hidden, with and without trust."""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
import struct
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from computekit import ComputekitError, cli, open_model, rewrite

from . import samples

WEIGHT = torch.arange(4.0)


class Run:
    """Pickles to a call of ``function(*arguments)``."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.call


class Filled:
    """Pickles to an object whose items, pairs and state come from calls."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.run = Run(function, *arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        return (OrderedDict, (), {"_metadata": self.run}, None, iter([("a", WEIGHT), ("b", self.run)]))


def hidden_in(place: str, run: Any) -> Any:
    """A checkpoint with ``run`` somewhere in it."""
    tensor = WEIGHT.clone()
    documents: dict[str, Any] = {
        "root": run,
        "value": {"model": {"a": tensor}, "args": run},
        "beside a weight": {"a": tensor, "b": run},
        "deep": {"model": {"a": tensor}, "x": [({"y": {"z": (run,)}},)]},
        "optimizer": {"model": {"a": tensor}, "optimizer": {"state": {0: run}, "param_groups": []}},
        "key": {"model": {"a": tensor}, "x": {run: 2}},
        "set": {"model": {"a": tensor}, "x": {run}},
        "own metadata": {"state_dict": {"a": tensor}, "computekit": {"arch": {"name": run, "args": {}}}},
        "architecture": {"state_dict": {"a": tensor}, "computekit": run},
    }
    return documents[place]


PLACES = ("root", "value", "beside a weight", "deep", "optimizer", "key", "set", "own metadata", "architecture")


@pytest.fixture
def canary(tmp_path: Path) -> Path:
    return tmp_path / "canary"


def payloads(canary: Path) -> dict[str, Run]:
    return {
        "os.system": Run(os.system, f"touch {canary}"),
        "eval": Run(eval, f"open({str(canary)!r}, 'w').close()"),
        "exec": Run(exec, f"open({str(canary)!r}, 'w').close()"),
        "open": Run(open, str(canary), "w"),
        "load from bytes": Run(torch.storage._load_from_bytes, saved(Run(os.system, f"touch {canary}"))),
    }


def saved(document: Any, **options: Any) -> bytes:
    stream = io.BytesIO()
    torch.save(document, stream, **options)
    return stream.getvalue()


def survives(path: Path, canary: Path) -> None:
    """Use ``path`` in every way that reads it; nothing of it may run, and nothing but a clear error may come."""
    for trust in (False, True):
        try:
            source = open_model(path, trust_pickle=trust)
            for name in source.tensors:
                source.load(name)
            rewrite(source, path.with_name("out"), lambda info, load: None)
            if not trust:
                torch.load(path.with_name("out"), weights_only=True)
        except ComputekitError:
            pass
    for words in (["inspect", str(path)], ["convert", str(path), str(path.with_name("b.safetensors"))]):
        result = CliRunner().invoke(cli.main, words)
        assert result.exit_code in (0, 1) and "internal error" not in result.output, result.output
    assert not canary.exists()


def test_the_canary_sings(canary: Path) -> None:
    for name, run in payloads(canary).items():
        pickle.loads(pickle.dumps(run))
        assert canary.exists(), name
        canary.unlink()


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
@pytest.mark.parametrize("place", PLACES)
def test_a_call_hidden_in_a_checkpoint(place: str, legacy: bool, canary: Path, tmp_path: Path) -> None:
    document = hidden_in(place, payloads(canary)["os.system"])
    (tmp_path / "a.pt").write_bytes(saved(document, _use_new_zipfile_serialization=not legacy))
    survives(tmp_path / "a.pt", canary)


@pytest.mark.parametrize("payload", ["eval", "exec", "open", "load from bytes"])
def test_other_calls(payload: str, canary: Path, tmp_path: Path) -> None:
    for number, document in enumerate([hidden_in("value", payloads(canary)[payload]), payloads(canary)[payload]]):
        (tmp_path / f"{number}.pt").write_bytes(saved(document))
        survives(tmp_path / f"{number}.pt", canary)


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_every_protocol(protocol: int, canary: Path, tmp_path: Path) -> None:
    for number, run in enumerate([payloads(canary)["os.system"], Filled(os.system, f"touch {canary}")]):
        (tmp_path / f"{number}.pt").write_bytes(saved({"model": {"a": WEIGHT}, "x": run}, pickle_protocol=protocol))
        survives(tmp_path / f"{number}.pt", canary)


@pytest.mark.parametrize("place", ["key", "location", "offset", "shape", "hooks", "parameter hooks", "type"])
def test_a_call_among_the_arguments_of_a_tensor(place: str, canary: Path, tmp_path: Path) -> None:
    from computekit.models.pickle_writing import emit
    from computekit.models.pickles import Call, Global, Ordered, Persistent

    run = Call(Global("os", "system"), (f"touch {canary}",))

    def at(name: str, otherwise: Any) -> Any:
        return run if name == place else otherwise

    kind, rebuild = Global("torch", "FloatStorage"), Global("torch._utils", "_rebuild_tensor_v3")
    storage = Persistent(("storage", kind, at("key", "0"), at("location", "cpu"), 4))
    hooks, dtype = at("hooks", Ordered()), at("type", Global("torch", "float32"))
    tensor = Call(rebuild, (storage, at("offset", 0), at("shape", (4,)), (1,), False, hooks, dtype))
    parameter = Call(Global("torch._utils", "_rebuild_parameter"), (tensor, True, at("parameter hooks", Ordered())))
    with zipfile.ZipFile(tmp_path / "a.pt", "w") as archive:
        archive.writestr("archive/data.pkl", emit({"a": parameter}))
        archive.writestr("archive/data/0", bytes(16))
    survives(tmp_path / "a.pt", canary)


def hand_made(canary: Path) -> dict[str, bytes]:
    """Opcodes that no pickler of today writes."""
    command = f"touch {canary}".encode()
    text = b"X" + struct.pack("<I", len(command)) + command
    return {
        "INST": b"(" + text + b"ios\nsystem\n.",
        "OBJ": b"(cos\nsystem\n" + text + b"o.",
        "GLOBAL and TUPLE": b"cos\nsystem\n(" + text + b"tR.",
        "STACK_GLOBAL": b"\x80\x04\x8c\x02os\x8c\x06system\x93" + text + b"\x85R.",
        "NEWOBJ_EX": b"\x80\x04\x8c\x02os\x8c\x06system\x93" + text + b"\x85}\x92.",
        "BUILD": b"\x80\x02cbuiltins\nobject\n)\x81}X\x0c\x00\x00\x00__setstate__cos\nsystem\nsb" + text + b"b.",
        "EXT1": b"\x80\x02\x82\x01.",
        "newline in a name": b"\x80\x04\x8c\x0aos\nsystem\n)\x8c\x01x\x93.",
        "popped": b"\x80\x02cos\nsystem\n" + text + b"\x85R0}.",
    }


@pytest.mark.parametrize("kind", list(hand_made(Path("x"))))
def test_opcodes_by_hand(kind: str, canary: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.pt", "w") as archive:
        archive.writestr("archive/data.pkl", hand_made(canary)[kind])
        archive.writestr("archive/version", "3\n")
    survives(tmp_path / "a.pt", canary)


@pytest.mark.parametrize("position", range(5))
def test_each_of_the_five_pickles_of_an_old_file(position: int, canary: Path, tmp_path: Path) -> None:
    parts = [0x1950A86A20F9469CFC6C, 1001, {"little_endian": True}, OrderedDict(), []]
    parts[position] = payloads(canary)["os.system"]
    (tmp_path / "a.pt").write_bytes(b"".join(pickle.dumps(part, protocol=2) for part in parts))
    survives(tmp_path / "a.pt", canary)


def replaced(path: Path, member: str, content: bytes) -> None:
    """Give one member of a zip other content, or add it."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    root = next(iter(members)).partition("/")[0]
    members[f"{root}/{member}"] = content
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)


@pytest.mark.parametrize("member", ["data.pkl", "constants.pkl", "code/__torch__.py.debug_pkl", "extra/evil.pkl"])
def test_torchscript_with_odd_members(member: str, canary: Path, tmp_path: Path) -> None:
    path = samples.make("torchscript", tmp_path / "a.pt")
    replaced(path, member, pickle.dumps(payloads(canary)["os.system"], protocol=2))
    survives(path, canary)


@pytest.mark.parametrize("member", ["data/sample_inputs/model.pt", "data/constants/custom_obj_0", "extra/evil.pkl"])
def test_exported_programs_with_odd_members(member: str, canary: Path, tmp_path: Path) -> None:
    path = samples.make("pt2", tmp_path / "a.pt2")
    replaced(path, member, saved(payloads(canary)["os.system"]))
    survives(path, canary)


def test_an_exported_program_with_a_pickled_weight(canary: Path, tmp_path: Path) -> None:
    path = samples.make("pt2", tmp_path / "a.pt2")
    with zipfile.ZipFile(path) as archive:
        config = json.loads(archive.read("a/data/weights/model_weights_config.json"))
    next(iter(config["config"].values()))["use_pickle"] = True
    replaced(path, "data/weights/model_weights_config.json", json.dumps(config).encode())
    replaced(path, "data/weights/weight_0", saved(payloads(canary)["os.system"]))
    survives(path, canary)


def test_a_model_inside_an_archive_is_named_not_opened(canary: Path, tmp_path: Path) -> None:
    (tmp_path / "m.pt").write_bytes(saved(payloads(canary)["os.system"]))
    shutil.make_archive(str(tmp_path / "zipped"), "zip", tmp_path, "m.pt")
    shutil.make_archive(str(tmp_path / "tarred"), "tar", tmp_path, "m.pt")
    shutil.make_archive(str(tmp_path / "packed"), "gztar", tmp_path, "m.pt")
    hints = {"zipped.zip": "contains 'm.pt'", "tarred.tar": "contains 'm.pt'", "packed.tar.gz": "gunzip"}
    for name, hint in hints.items():
        with pytest.raises(ComputekitError, match=hint):
            open_model(tmp_path / name, trust_pickle=True)
    assert not canary.exists()


def test_a_folder_with_a_hostile_weight_file(canary: Path, tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "pytorch_model.bin").write_bytes(saved(payloads(canary)["os.system"]))
    with pytest.raises(ComputekitError, match=r"pytorch_model\.bin.*wants to import"):
        open_model(tmp_path / "m")
    assert not canary.exists()


def test_shards_outside_the_folder_are_not_opened(tmp_path: Path) -> None:
    samples.make("safetensors", tmp_path / "secret.safetensors")
    (tmp_path / "m").mkdir()
    for name in ("../secret.safetensors", str(tmp_path / "secret.safetensors"), "..", ""):
        index = {"weight_map": {"n": name}}
        (tmp_path / "m" / "model.safetensors.index.json").write_text(json.dumps(index))
        with pytest.raises(ComputekitError, match=r"not a plain file name|missing"):
            open_model(tmp_path / "m")


def bomb(path: Path, member: str, size: int) -> Path:
    """A torch archive one member of which is ``size`` zeros, compressed a thousandfold."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in {"data.pkl": b"\x80\x02}.", "byteorder": b"little", "version": b"3\n"}.items():
            if name != member:
                archive.writestr(f"archive/{name}", content)
        with archive.open(f"archive/{member}", "w") as stream:
            for _ in range(size >> 20):
                stream.write(bytes(1 << 20))
    return path


@pytest.mark.parametrize("member", ["data.pkl", "byteorder", "data/0", "constants.pkl", "archive_format"])
def test_zip_bombs_are_not_unpacked(member: str, tmp_path: Path) -> None:
    import tracemalloc

    path = bomb(tmp_path / "a.pt", member, 64 << 20)
    tracemalloc.start()
    with pytest.raises(ComputekitError):
        open_model(path)
    assert tracemalloc.get_traced_memory()[1] < 8 << 20
    tracemalloc.stop()


def test_laughter_is_bounded(tmp_path: Path) -> None:
    """Ten lists of ten references to the list before: small on disk, ten thousand million items if followed."""
    value: Any = {"a": 1}
    for _ in range(40):
        value = {"x": value, "y": value}
    (tmp_path / "a.pt").write_bytes(saved({"model": {"w": WEIGHT}, "laughs": value}))
    source = open_model(tmp_path / "a.pt")
    rewrite(source, tmp_path / "b.pt", lambda info, load: None)
    assert (tmp_path / "b.pt").stat().st_size < 20_000


def test_endless_nesting_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.pt", "w") as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b".")
    with pytest.raises(ComputekitError):
        open_model(tmp_path / "a.pt")


def test_two_members_of_one_name_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.pt").write_bytes(saved({"a": WEIGHT}))
    with pytest.warns(UserWarning, match="Duplicate"), zipfile.ZipFile(tmp_path / "a.pt", "a") as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02}.")
    with pytest.raises(ComputekitError, match="two members of the same name"):
        open_model(tmp_path / "a.pt")


@pytest.mark.parametrize(
    ("shape", "stride", "offset", "count"),
    [
        ((2**62,), (0,), 0, 4),
        ((2**31, 2**31), (1, 1), 0, 4),
        ((8,), (1,), 0, 4),
        ((4,), (1,), 1, 4),
        ((4,), (1,), -1, 4),
        ((-4,), (1,), 0, 4),
        ((2, 2), (1,), 0, 4),
        ((4,), (2**61,), 0, 4),
        ((4,), (1,), 0, 2**62),
        ((4,), (1,), 0, -4),
        (("4",), (1,), 0, 4),
        ((2**40,), (0,), 0, 4),
    ],
)
def test_absurd_tensors_are_refused(shape: Any, stride: Any, offset: int, count: int, tmp_path: Path) -> None:
    from computekit.models.pickle_writing import emit
    from computekit.models.pickles import Call, Global, Ordered, Persistent

    storage = Persistent(("storage", Global("torch", "FloatStorage"), "0", "cpu", count))
    rebuild = Global("torch._utils", "_rebuild_tensor_v2")
    root = {"a": Call(rebuild, (storage, offset, shape, stride, False, Ordered()))}
    with zipfile.ZipFile(tmp_path / "a.pt", "w") as archive:
        archive.writestr("archive/data.pkl", emit(root))
        archive.writestr("archive/data/0", bytes(16))
    with pytest.raises(ComputekitError):
        open_model(tmp_path / "a.pt")


def test_harmless_names_are_those_of_torch() -> None:
    """What is opened without trust is what torch.load(weights_only=True) allows, and not one name more."""
    from computekit.models import checkpoint

    allowed = set(torch._weights_only_unpickler._get_allowed_globals())
    listed = checkpoint._HARMLESS | {f"torch._utils.{name}" for name in checkpoint._REBUILD}
    listed |= {f"torch.{name}" for name in (*checkpoint._STORAGE_OF.values(), *checkpoint._OPAQUE_STORAGES)}
    assert listed - allowed == set()
    for name in (
        "os.system",
        "builtins.eval",
        "torch.load",
        "torch._utils._import_dotted_name",
        "numpy.load",
        "torch.jit.load",
    ):
        assert not checkpoint.is_harmless(name)
