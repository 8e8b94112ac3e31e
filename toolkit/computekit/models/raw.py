"""Tensors as bytes: reading them from a place in a file, and writing them, without a copy in between."""

from __future__ import annotations

import contextlib
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, cast

import torch

from ..errors import FileProblem

_CHUNK = 1 << 22


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """The tensor's bytes in row-major order; a copy is made only if the tensor is not contiguous on the CPU."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    flat = flat.as_strided(flat.shape, (1,))  # a single element may have any stride, and only 1 can be viewed as bytes
    return memoryview(cast(Any, flat.view(torch.uint8).numpy()))


def is_packed(dtype: torch.dtype) -> bool:
    """Whether an element is two 4-bit floats in one byte, which torch stores but does not compute with or convert."""
    return str(dtype).endswith("_x2")


def read(path: Path, offset: int, dtype: torch.dtype, count: int) -> torch.Tensor:
    """``count`` elements (a 1-D tensor) from the bytes that begin at ``offset``."""
    tensor = torch.empty(count * dtype.itemsize, dtype=torch.uint8)
    with path.open("rb") as stream:
        stream.seek(offset)
        if stream.readinto(bytes_of(tensor)) != tensor.numel():
            raise FileProblem(path, "ends in the middle of a tensor", "the file is truncated")
    return tensor.view(dtype)


def pieces(path: Path, offset: int, dtype: torch.dtype, total: int, count: int) -> Iterator[torch.Tensor]:
    """``total`` elements from the bytes that begin at ``offset``, ``count`` at a time: see `ModelFile.pieces`."""
    buffer = torch.empty(min(total, count) * dtype.itemsize, dtype=torch.uint8)
    content = bytes_of(buffer)
    with path.open("rb") as stream:
        stream.seek(offset)
        for left in range(total, 0, -count):
            wanted = min(left, count) * dtype.itemsize
            if stream.readinto(content[:wanted]) != wanted:
                raise FileProblem(path, "ends in the middle of a tensor", "the file is truncated")
            yield buffer[:wanted].view(dtype)


def chunks(path: Path, offset: int, count: int) -> Iterator[memoryview]:
    """``count`` bytes of a file from ``offset`` on, piece by piece; each piece is gone when the next one comes."""
    buffer = memoryview(bytearray(min(_CHUNK, count)))
    with path.open("rb", buffering=0) as stream:
        stream.seek(offset)
        while count:
            got = stream.readinto(buffer[: min(count, len(buffer))])
            if not got:
                raise FileProblem(path, "became shorter while it was read")
            count -= got
            yield buffer[:got]


def crc32(path: Path, offset: int, count: int) -> int:
    """The CRC-32, as zip archives have it, of ``count`` bytes of a file from ``offset`` on."""
    crc = 0
    for chunk in chunks(path, offset, count):
        crc = zlib.crc32(chunk, crc)
    return crc


def copy(path: Path, offset: int, count: int, target: IO[bytes]) -> None:
    """Append ``count`` bytes of a file to ``target``, inside the kernel where the system can."""
    target.flush()
    begin = target.tell()
    copied = 0
    if hasattr(os, "copy_file_range"):
        with path.open("rb") as stream, contextlib.suppress(OSError):  # other file systems: copied below
            while copied < count:
                got = os.copy_file_range(
                    stream.fileno(), target.fileno(), count - copied, offset + copied, begin + copied
                )
                if not got:
                    break
                copied += got
    target.seek(begin + copied)
    for chunk in chunks(path, offset + copied, count - copied):
        target.write(chunk)
