"""Objects that a user names on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from computekit.errors import UnknownName
from computekit.imports import import_object


def test_what_is_offered_instead_of_a_missing_name_are_no_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "offers.py").write_text("import os, torch\n\ndef build(): ...\n\nclass Net: ...\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UnknownName, match=r"unknown architecture in offers 'xyz'; known: Net, build$"):
        import_object("offers:xyz", "architecture")
