"""docs/plugins: generated parts are current, every kind has its page, and the examples are what the docs say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import computekit
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
        for target, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", page.read_text(encoding="utf-8")):
            aim = page.parent / target if target else page
            assert aim.exists(), f"{page.name}: {target}"
            headings = re.findall(r"^#+ (.*)$", aim.read_text(encoding="utf-8"), re.MULTILINE) if anchor else []
            assert not anchor or anchor in {_anchor(heading) for heading in headings}, f"{page.name}: {target}#{anchor}"


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def test_every_public_name_has_its_place() -> None:
    text = "".join((DOCS / name).read_text(encoding="utf-8") for name in ("api.md", "hooks.md"))
    places = {*re.findall(r"^##+ (?:computekit\.testing\.)?(\w+)$", text, re.MULTILINE)}
    elsewhere = {"__version__", "errors", "hookspecs", "options"} | {"API_VERSION", "hookimpl", "hookspec"}
    assert set(computekit.__all__) - places == elsewhere
    assert {"`computekit.API_VERSION`", "`computekit.hookimpl`", "`computekit.hookspec`"} <= set(
        re.findall(r"`[\w.]+`", text)
    )


def test_the_tutorial_is_forty_lines_of_code() -> None:
    text = (DOCS / "tutorial.md").read_text(encoding="utf-8")
    code = text.split("src/computekit_ternary/__init__.py\n", 1)[1].split("```", 1)[0]
    lines = [line for line in code.splitlines() if line.strip()]
    assert len(lines) <= 42
