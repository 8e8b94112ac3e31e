"""Damaged files of every kind: always an error in one line, or a model; never a crash, never more memory than the file.

The everyday run tries a few dozen damages of each kind, the slow one 500.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from computekit import ComputekitError, FileProblem, open_model

from . import samples

NEEDS = {"onnx": "onnx", "gguf": "gguf"}
LIMIT = 1 << 27


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The bytes of a small file of each kind."""
    folder = tmp_path_factory.mktemp("samples")
    return {k: samples.make(k, folder / "a").read_bytes() for k in samples.KINDS if _available(k)}


def _available(kind: str) -> bool:
    import importlib.util

    return kind not in NEEDS or importlib.util.find_spec(NEEDS[kind]) is not None


def read_all(path: Path) -> int:
    """Open ``path`` and load every tensor; the bytes that this gave. Only ComputekitError may be raised."""
    total = 0
    for trust in (False, True):
        try:
            source = open_model(path, trust_pickle=trust)
        except ComputekitError as error:
            assert "\n" not in str(error) and str(path) in str(error)
            continue
        for name in source.tensors:
            try:
                total += source.load(name).nbytes
            except ComputekitError as error:
                assert str(path) in str(error)
    assert total < LIMIT
    return total


def damaged(content: bytes, flips: list[tuple[float, int]]) -> bytes:
    changed = bytearray(content)
    for where, mask in flips:
        changed[int(where * len(changed))] ^= mask
    return bytes(changed)


flips = st.lists(
    st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)),
    min_size=1,
    max_size=8,
)
everyday = settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
thorough = settings(max_examples=500, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize("kind", samples.KINDS)
def test_an_undamaged_file_is_read(kind: str, whole: dict[str, bytes], tmp_path: Path) -> None:
    if kind not in whole:
        pytest.skip(f"{NEEDS[kind]} is not installed")
    (tmp_path / "a").write_bytes(whole[kind])
    assert open_model(tmp_path / "a").format == kind
    assert read_all(tmp_path / "a") > 100


@pytest.mark.parametrize("kind", samples.KINDS)
def test_truncation_at_every_percent_is_noticed(kind: str, whole: dict[str, bytes], tmp_path: Path) -> None:
    if kind not in whole:
        pytest.skip(f"{NEEDS[kind]} is not installed")
    for percent in range(100):
        (tmp_path / "a").write_bytes(whole[kind][: len(whole[kind]) * percent // 100])
        with pytest.raises(FileProblem):
            open_model(tmp_path / "a", trust_pickle=True)


@pytest.mark.parametrize("kind", samples.KINDS)
def test_flipped_bytes(kind: str, whole: dict[str, bytes], tmp_path: Path) -> None:
    _try_flips(kind, whole, tmp_path, everyday)


@pytest.mark.slow
@pytest.mark.parametrize("kind", samples.KINDS)
def test_flipped_bytes_thoroughly(kind: str, whole: dict[str, bytes], tmp_path: Path) -> None:
    _try_flips(kind, whole, tmp_path, thorough)


def _try_flips(kind: str, whole: dict[str, bytes], folder: Path, how: settings) -> None:
    if kind not in whole:
        pytest.skip(f"{NEEDS[kind]} is not installed")

    @how
    @given(flips)
    def check(changes: list[tuple[float, int]]) -> None:
        (folder / "a").write_bytes(damaged(whole[kind], changes))
        read_all(folder / "a")

    check()
