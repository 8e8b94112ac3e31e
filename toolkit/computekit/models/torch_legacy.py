"""Files of torch < 1.6: five pickles in a row (magic number, version, system, object, storage keys), then the storages.

Each storage is its number of elements (8 bytes) and its data. Layout: ``_legacy_save`` in ``torch/serialization.py``.
"""

from __future__ import annotations

import io
import os
import struct
from pathlib import Path

from ..errors import FileProblem
from . import checkpoint, pickles, torch_files
from .checkpoint import Storage
from .pickles import Malformed
from .torch_files import Extent, TorchFile

MAGIC = 0x1950A86A20F9469CFC6C

write = torch_files.write
"""Such files are written as zip archives, which every torch since 1.6 opens."""


def sniff(path: Path) -> bool:
    """Whether ``path`` starts with torch's magic number."""
    if path.is_dir():
        return False
    with path.open("rb") as stream:
        try:
            return bool(pickles.parse(io.BytesIO(stream.read(64))) == MAGIC)
        except Malformed:
            return False


def read(path: Path, trust_pickle: bool) -> TorchFile:
    """A file of torch < 1.6.

    Raises:
        FileProblem: it is damaged, or names classes and ``trust_pickle`` is not given.
    """
    size = path.stat().st_size
    try:
        with path.open("rb") as stream:
            system = [pickles.parse(stream) for _ in range(3)][-1]
            if isinstance(system, dict) and system.get("little_endian") is False:
                raise FileProblem(path, "was written on a big-endian machine", "save it as little-endian there")
            root = checkpoint.parse(stream)
            keys = pickles.parse(stream)
            if not isinstance(keys, list) or not all(isinstance(key, (str, int)) for key in keys):
                raise Malformed("the list of storages is missing")
            known = {v.key: v for v in pickles.walk(root, checkpoint.contents) if isinstance(v, Storage)}
            extents: dict[str, Extent] = {}
            for key in map(str, keys):
                length = stream.read(8)
                if len(length) < 8 or key not in known:
                    raise Malformed(f"it ends before storage {key!r}")
                storage = known[key]
                if struct.unpack("<q", length)[0] != storage.count:
                    raise Malformed(f"storage {key!r} has another size than announced")
                extents[key] = Extent(stream.tell(), storage.nbytes)
                if stream.seek(storage.nbytes, os.SEEK_CUR) > size:
                    raise Malformed(f"it ends inside storage {key!r}")
    except (Malformed, struct.error) as error:
        raise FileProblem(path, f"is a damaged torch file ({error})", "get the file again") from error
    return torch_files.checked(path, "torch legacy", root, extents, trust_pickle)
