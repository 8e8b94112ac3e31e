"""Write the generated parts of docs/plugins: the hook manual, and the code that each kind's page shows.

    python scripts/plugin_docs.py           # rewrite what changed
    python scripts/plugin_docs.py --check   # exit 1 if something is out of date

The manual comes from the hooks' own signatures and docstrings (hookspecs.py, and the hooks that our plugins declare),
the code from the templates of ``computekit plugins new``, the reference from what plugins import (`api_docs`). A test
runs the check.
"""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import api_docs

from computekit import contracts, verbs
from computekit.commands.new import KINDS, render
from computekit.host import Host
from computekit.loading import Policy, parse_allowed

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "plugins"
BLOCK = re.compile(r"(<!-- code: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def hooks() -> dict[str, Callable[..., Any]]:
    """Every hook of the host and of the first-party plugins, by name."""
    host = Host.discover(Policy(allowed=parse_allowed("computekit")))
    found = {}
    for name, caller in sorted(vars(host.manager.hook).items()):
        if not name.startswith("_") and caller.spec is not None:
            found[name] = getattr(caller.spec.namespace, name)
    return found


def manual() -> str:
    """The text of hooks.md."""
    parts = [
        "# The hooks\n\n"
        "Generated from the hooks themselves by `scripts/plugin_docs.py`; do not edit.\n\n"
        f"The version of this interface is **{verbs.API_VERSION}** (`computekit.API_VERSION`). Hooks only ever gain\n"
        "arguments, and an implementation may leave out those that it does not need.\n"
    ]
    for name, hook in hooks().items():
        parts.append(_hook(name, hook))
    parts.append("## What hooks return\n")
    for kind in (verbs.Command, verbs.Step, *contracts_of(contracts), *_plugin_contracts()):
        parts.append(_contract(kind))
    return "\n".join(parts)


def pages() -> dict[Path, str]:
    """Every generated file, by path, as it should be."""
    wanted = {FOLDER / "hooks.md": _formatted(manual()), FOLDER / "api.md": _formatted(api_docs.reference())}
    for page in sorted(FOLDER.glob("*.md")):
        text = page.read_text(encoding="utf-8")
        filled = BLOCK.sub(lambda match: f"{match[1]}```python\n{_code(match[2])}```\n{match[3]}", text)
        if filled != text or BLOCK.search(text):
            wanted[page] = filled
    return wanted


def _formatted(text: str) -> str:
    """The code in ``text`` as ruff formats it, for the repository's Markdown is checked too."""
    ruff = [sys.executable, "-m", "ruff", "format", "--stdin-filename", str(FOLDER / "hooks.md"), "-"]
    return subprocess.run(ruff, input=text, capture_output=True, text=True, check=True, cwd=ROOT).stdout


def _code(kind: str) -> str:
    """The module that ``plugins new mine --kind KIND`` writes."""
    if kind not in KINDS:
        raise SystemExit(f"docs/plugins: there is no kind {kind!r}")
    return render("mine", kind, date="2026-11-30")["src/computekit_mine/__init__.py"]


def _hook(name: str, hook: Callable[..., Any]) -> str:
    module = inspect.getmodule(hook)
    where = f"Declared by `{module.__name__}`.\n\n" if module and module.__name__ != "computekit.hookspecs" else ""
    signature = str(inspect.signature(hook)).replace("'", "")
    return f"## {name}\n\n```python\n{name}{signature}\n```\n\n{where}{_markdown(inspect.getdoc(hook) or '')}\n"


def contracts_of(module: ModuleType) -> list[type]:
    """The dataclasses that ``module`` defines."""
    return [
        value
        for value in vars(module).values()
        if dataclasses.is_dataclass(value) and isinstance(value, type) and value.__module__ == module.__name__
    ]


def _plugin_contracts() -> list[type]:
    """What the hooks that our plugins declare return and hand over, in the order of those hooks."""
    modules = {module.__name__: module for module in map(inspect.getmodule, hooks().values()) if module}
    modules.pop("computekit.hookspecs")
    return [kind for module in modules.values() for kind in contracts_of(module)]


def _contract(kind: type) -> str:
    rows = []
    for field in dataclasses.fields(kind):
        default = "" if field.default is dataclasses.MISSING else f" = {field.default!r}"
        default = re.sub(r"<function .*>", "...", default)
        rows.append(f"| `{field.name}` | `{str(field.type).replace('|', chr(92) + '|')}{default}` |")
    table = "\n".join(["| field | type |", "|---|---|", *rows])
    where = "" if kind.__module__.startswith("computekit.") else f"From `{kind.__module__}`.\n\n"
    return f"### {kind.__name__}\n\n{where}{_markdown(inspect.getdoc(kind) or '')}\n\n{table}\n"


def _markdown(text: str) -> str:
    """A docstring as Markdown: literal blocks become fenced code."""
    prose, _, example = text.partition("Example::\n")
    prose = re.sub(r"``(.+?)``", r"`\1`", prose.strip(), flags=re.DOTALL)
    return f"{prose}\n\n```python\n{inspect.cleandoc(example)}\n```" if example else prose


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if something is out of date")
    check = parser.parse_args().check
    stale = {
        path: text for path, text in pages().items() if not path.exists() or path.read_text(encoding="utf-8") != text
    }
    for path, text in stale.items():
        print(path.relative_to(ROOT))
        if not check:
            path.write_text(text, encoding="utf-8")
    sys.exit(1 if check and stale else 0)


if __name__ == "__main__":
    main()
