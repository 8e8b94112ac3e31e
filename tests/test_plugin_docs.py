"""docs/plugins: generated parts are current, every kind has its page, and the examples are what the docs say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from computekit.commands.new import KINDS

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs" / "plugins"


def test_generated_parts_are_current() -> None:
    checked = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "plugin_docs.py"), "--check"], capture_output=True, text=True
    )
    assert checked.returncode == 0, f"run scripts/plugin_docs.py: {checked.stdout}{checked.stderr}"


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_its_page(kind: str) -> None:
    page = (DOCS / f"{kind}.md").read_text(encoding="utf-8")
    assert f"computekit plugins new mine --kind {kind}" in page
    assert f"<!-- code: {kind} -->\n```python\n" in page
    assert f"({kind}.md)" in (DOCS / "index.md").read_text(encoding="utf-8")


def test_every_link_leads_somewhere() -> None:
    for page in DOCS.glob("*.md"):
        for target in re.findall(r"\]\(([^)#]+\.md)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_tutorial_is_forty_lines_of_code() -> None:
    text = (DOCS / "tutorial.md").read_text(encoding="utf-8")
    code = text.split("src/computekit_ternary/__init__.py\n", 1)[1].split("```", 1)[0]
    lines = [line for line in code.splitlines() if line.strip()]
    assert len(lines) <= 42
