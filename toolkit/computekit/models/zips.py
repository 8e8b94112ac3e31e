"""Zip archives, opened only where they are what the file is."""

from __future__ import annotations

import zipfile
from pathlib import Path


def open_zip(path: Path) -> zipfile.ZipFile:
    """The archive that begins where the file does.

    The directory of an archive is at its end. Where the end of one is missing that holds another, not compressed, the
    last directory is the inner one's, and `zipfile` would read that archive behind what it takes for a program.

    Raises:
        BadZipFile: it is no such archive, or is damaged; and what else `zipfile` raises on damaged ones.
    """
    archive = zipfile.ZipFile(path)
    if archive.filelist and min(member.header_offset for member in archive.filelist) > 0:
        archive.close()
        raise zipfile.BadZipFile("its directory is that of an archive inside")
    return archive
